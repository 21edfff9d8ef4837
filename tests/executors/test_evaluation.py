"""Perplexity and divergence: against the oracle's logits, and every token counted once."""

from __future__ import annotations

import numpy as np
import pytest

from chairlift.executors.forward import forward
from chairlift.executors.openvino import ExecutorOptions, evaluation
from chairlift.executors.openvino.evaluation import evaluate, log_probabilities, windows_of
from chairlift.executors.openvino.options import Dtype
from chairlift.executors.openvino.program import Program
from chairlift.models import Model, open_model, resolve
from executors.checkpoints import tokens_of, write_checkpoint

TOKENS = tokens_of("grouped")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return open_model(resolve(str(write_checkpoint("grouped", tmp_path_factory.mktemp("made") / "tiny"))))


def program(model: Model, dtype: Dtype, wide: frozenset[str] = frozenset()) -> Program:
    return Program(model, ExecutorOptions(max_num_seqs=1, max_model_len=80, dtype=dtype, wide_weights=wide))


@pytest.mark.parametrize(
    ("num_tokens", "prefix", "context", "stride"),
    [(80, [], 32, 32), (80, [1], 32, 31), (80, [1], 32, 7), (80, [], 32, 16), (5, [1], 32, 31), (33, [], 32, 32)],
)
def test_every_token_that_has_one_before_it_is_counted_once(
    num_tokens: int, prefix: list[int], context: int, stride: int
) -> None:
    text = list(range(100, 100 + num_tokens))
    windows = windows_of(text, prefix, context, stride)
    counted = [int(token) for window in windows for token in window.tokens[window.first_scored :]]
    starts = set() if prefix else {text[0]} | ({*text[::stride]} if stride == context else set())
    assert counted == [token for token in text if token not in starts]
    for window in windows:
        assert list(window.tokens[: len(prefix)]) == prefix and len(window.tokens) <= context
    if len(windows) > 1 and stride < context - len(prefix):
        assert windows[1].first_scored == len(prefix) + context - len(prefix) - stride


def test_nothing_to_predict() -> None:
    assert windows_of([5], [], 32, 32) == [] and windows_of([], [1], 32, 31) == []


@pytest.mark.parametrize("step_tokens", [512, 20])
def test_perplexity_is_the_oracles(tiny: Model, step_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows computed at once and in pieces, with rows reduced a few at a time."""
    monkeypatch.setattr(evaluation, "STEP_TOKENS", step_tokens)
    monkeypatch.setattr(evaluation, "PIECE_NUMBERS", 7 * tiny.config.vocab_size)
    windows = windows_of(TOKENS, [1], 48, 30)
    nats = []
    for window in windows:
        own = log_probabilities(forward(tiny, window.tokens.tolist()))
        nats += [-own[i - 1, window.tokens[i]] for i in range(window.first_scored, len(window.tokens))]
    done: list[int] = []
    report = evaluate(program(tiny, "float32"), None, windows, done.append).report()
    assert report["predictions"] == len(TOKENS) == len(nats)
    assert report["perplexity"] == pytest.approx(np.exp(np.mean(nats)), rel=1e-4)
    assert sum(done) == sum(len(window.tokens) for window in windows)
    assert set(report) == {"predictions", "perplexity"}


def test_a_coarser_precision_is_farther_away_and_wide_weights_bring_it_back(tiny: Model) -> None:
    windows = windows_of(TOKENS, [], 80, 80)
    exact = program(tiny, "float32")
    same = evaluate(exact, exact, windows).report()
    assert same["kl_mean"] == same["kl_p99"] == same["perplexity_change_percent"] == 0
    assert same["same_best_percent"] == 100 and same["perplexity"] == same["against_perplexity"]
    names = frozenset(name for name in (*tiny.weights.names, "head") if name != "embed")
    nothing = frozenset[str]()
    kinds: list[tuple[Dtype, frozenset[str]]] = [
        ("int4", nothing), ("int8", nothing), ("int8", names), ("bfloat16", nothing)
    ]  # fmt: skip
    four, eight, wide_eight, sixteen = (
        evaluate(program(tiny, dtype, wide), exact, windows).report()["kl_mean"] for dtype, wide in kinds
    )
    assert four > 3 * eight > 0
    assert sixteen < wide_eight < 0.4 * eight  # the embeddings are in eight bits
    again = evaluate(program(tiny, "int8"), exact, windows).report()
    assert again["kl_mean"] == eight


def test_divergence_of_known_distributions() -> None:
    seen = evaluation.Comparison()
    own, other = np.log([[0.5, 0.5], [0.9, 0.1]]), np.log([[0.25, 0.75], [0.8, 0.2]])
    seen.add(own, other, np.array([0, 1], np.int32))
    report = seen.report()
    kl = [0.25 * np.log(0.5) + 0.75 * np.log(1.5), 0.8 * np.log(0.8 / 0.9) + 0.2 * np.log(2)]
    assert report["kl_mean"] == pytest.approx(np.mean(kl)) and report["kl_p99"] == pytest.approx(max(kl), rel=0.02)
    assert report["perplexity"] == pytest.approx((0.5 * 0.1) ** -0.5)
    assert report["against_perplexity"] == pytest.approx((0.25 * 0.2) ** -0.5)
    assert report["same_best_percent"] == 50
