"""Log-probabilities that `LLM` returns, against the reference: prompts and outputs, chunked or not, cached or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift import LLM, RequestOutput, SamplingParams
from chairlift.core.types import TokenLogprob
from chairlift.executors.forward import ReferenceModel, empty_caches, weights_of
from chairlift.models import open_model, resolve
from models.writers import tiny_llama
from text.vocabularies import byte_level_backend, byte_level_metadata

TOLERANCE = 1e-3
LENGTHS = (1, 2, 31, 32, 33, 64, 65, 97, 130)


@dataclass(slots=True)
class Tiny:
    """A GGUF file, and its model in NumPy."""

    path: Path
    exact: ReferenceModel
    vocab_size: int

    def logprobs(self, tokens: list[int]) -> NDArray[np.float64]:
        """What the model gives every token of the vocabulary after each of `tokens`, `[tokens, vocab]`."""
        caches = empty_caches(self.exact.config, len(tokens))
        wide = self.exact.forward(tokens, 0, *caches).astype(np.float64)
        wide -= wide.max(axis=1, keepdims=True)
        exact: NDArray[np.float64] = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
        return exact

    def prompts(self) -> list[list[int]]:
        """One of each length, all with a common beginning."""
        tokens = np.random.default_rng(8).integers(3, self.vocab_size, max(LENGTHS)).tolist()
        return [[*tokens[: length - 1], 5 + i] for i, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    backend = byte_level_backend(vocab_size=300)
    vocab_size = backend.get_vocab_size()
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    tiny_llama(seed=2, vocab_size=vocab_size).write_gguf(path, extra=byte_level_metadata(backend))
    model = open_model(resolve(str(path)))
    return Tiny(path, ReferenceModel(model.config, weights_of(model)), vocab_size)


@pytest.fixture(scope="module", params=["whole", "chunked", "chunked, not cached"])
def llm(request: pytest.FixtureRequest, tiny: Tiny) -> Iterator[LLM]:
    with LLM(
        str(tiny.path),
        dtype="float32",
        max_model_len=200,
        max_num_seqs=8,
        max_num_batched_tokens=256 if request.param == "whole" else 11,
        enable_prefix_caching="not cached" not in request.param,
        kv_cache_memory_bytes=1 << 24,
        seed=5,
    ) as llm:
        yield llm


def check(found: TokenLogprob, token: int, exact: NDArray[np.float64], num_top: int) -> None:
    """Token, log-probability, rank and alternatives; near ties may change places."""
    assert found.token == token
    assert abs(found.logprob - exact[token]) < TOLERANCE
    assert (exact > exact[token] + TOLERANCE).sum() < found.rank <= (exact > exact[token] - TOLERANCE).sum()
    assert len(found.top) == num_top
    best = np.sort(exact)[::-1]
    for i, (other, logprob) in enumerate(found.top):
        assert abs(logprob - exact[other]) < TOLERANCE
        assert abs(logprob - best[i]) < TOLERANCE
    assert len({other for other, _ in found.top}) == num_top


def check_all(output: RequestOutput, tiny: Tiny, num_top: int, num_prompt_top: int) -> None:
    prompt = output.prompt_token_ids
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(prompt)
    assert output.prompt_logprobs[0] is None
    for choice in output.outputs:
        exact = tiny.logprobs([*prompt, *choice.token_ids])
        for i, scored in enumerate(output.prompt_logprobs[1:], 1):
            assert scored is not None
            check(scored, prompt[i], exact[i - 1], num_prompt_top)
        assert choice.logprobs is not None
        assert len(choice.logprobs) == len(choice.token_ids)
        for i, found in enumerate(choice.logprobs):
            check(found, choice.token_ids[i], exact[len(prompt) + i - 1], num_top)
        assert choice.cumulative_logprob == pytest.approx(sum(found.logprob for found in choice.logprobs))


def test_greedy_output_and_prompt(llm: LLM, tiny: Tiny) -> None:
    """Twice: the second time every prompt could come from the cache, and must not where it is to be scored."""
    params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, logprobs=4, prompt_logprobs=3)
    for _ in range(2):
        outputs = llm.generate(tiny.prompts(), params, use_tqdm=False)
        for output in outputs:
            check_all(output, tiny, 4, 3)
            (choice,) = output.outputs
            assert choice.logprobs is not None
            assert all(found.top[0][0] == found.token for found in choice.logprobs)


def test_sampled_choices_have_the_models_own_distribution(llm: LLM, tiny: Tiny) -> None:
    """Not that of the penalties, the bias and the temperature by which they were chosen."""
    params = SamplingParams(
        max_tokens=6,
        temperature=2.0,
        top_k=30,
        repetition_penalty=1.5,
        logit_bias=((7, 5.0),),
        ignore_eos=True,
        seed=1,
        logprobs=0,
        prompt_logprobs=20,
    )
    for output in llm.generate(tiny.prompts(), params, n=3, use_tqdm=False):
        check_all(output, tiny, 0, 20)
        assert len({tuple(choice.token_ids) for choice in output.outputs}) > 1


def test_cached_prompts_change_no_log_probability(llm: LLM, tiny: Tiny, request: pytest.FixtureRequest) -> None:
    num_cached = 0
    params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, logprobs=2)
    for _ in range(2):
        for output in llm.generate(tiny.prompts(), params, use_tqdm=False):
            (choice,) = output.outputs
            exact = tiny.logprobs([*output.prompt_token_ids, *choice.token_ids])
            assert choice.logprobs is not None
            for i, found in enumerate(choice.logprobs):
                check(found, choice.token_ids[i], exact[len(output.prompt_token_ids) + i - 1], 2)
            num_cached += output.metrics[0].num_cached_tokens
    assert (num_cached > 0) == ("not cached" not in request.node.callspec.params["llm"])
