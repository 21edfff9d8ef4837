"""How well a model predicts a text, and how far its distributions are from those of another precision or model.

A text is cut into windows that are computed from the beginning, as if nothing stood before them. Logits are reduced
to a few numbers for each predicted token, piece by piece: what is kept grows by some 25 bytes with a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from chairlift.executors.openvino.attention import BLOCK_SIZE
from chairlift.executors.openvino.inputs import Ints, StepInputs
from chairlift.executors.openvino.program import MAX_HEAD_ROWS, Program

STEP_TOKENS = 512
"""Tokens of a window that are computed at once."""
PIECE_NUMBERS = 1 << 21
"""Logits that are reduced at a time, in float64 and a few copies."""
Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens that are computed together; those from `first_scored` on are counted, others are only their past."""

    tokens: Ints
    first_scored: int


def windows_of(tokens: Sequence[int], prefix: Sequence[int], context: int, stride: int) -> list[Window]:
    """A text in windows of `context` tokens, each `stride` tokens of text on, each with `prefix` in front.

    Every token is counted once, in the first window that holds it; what has no token before it is not predicted.
    """
    text = np.array(tokens, np.int32)
    front = np.array(prefix, np.int32)
    room = context - len(front)
    windows, counted = [], 0
    for first in range(0, len(text), stride):
        end = min(first + room, len(text))
        window = np.concatenate((front, text[first:end]))
        first_scored = max(len(front) + counted - first, 1)
        if first_scored < len(window):
            windows.append(Window(window, first_scored))
        counted = end
        if end == len(text):
            break
    return windows


@dataclass(slots=True)
class Comparison:
    """What was seen of one model, or of two: a number for each predicted token."""

    nats: list[Doubles] = field(default_factory=list)
    other_nats: list[Doubles] = field(default_factory=list)
    same_best: list[NDArray[np.bool_]] = field(default_factory=list)
    divergence: list[Doubles] = field(default_factory=list)

    def add(self, own: Doubles, other: Doubles | None, targets: Ints) -> None:
        """Take in log probabilities `[rows, vocab]` and the tokens that came, `[rows]`."""
        rows = np.arange(len(targets))
        self.nats.append(-own[rows, targets])
        if other is not None:
            self.other_nats.append(-other[rows, targets])
            self.same_best.append(own.argmax(axis=1) == other.argmax(axis=1))
            self.divergence.append((np.exp(other) * (other - own)).sum(axis=1))

    def report(self) -> dict[str, float | int]:
        """Perplexity; of two models also its change, and the Kullback-Leibler divergence from the other in nats."""
        nats = np.concatenate(self.nats)
        report: dict[str, float | int] = {"predictions": len(nats), "perplexity": float(np.exp(nats.mean()))}
        if self.divergence:
            divergence, other = np.concatenate(self.divergence), np.concatenate(self.other_nats)
            report["against_perplexity"] = float(np.exp(other.mean()))
            report["perplexity_change_percent"] = float(np.expm1(nats.mean() - other.mean()) * 100)
            report["same_best_percent"] = float(np.concatenate(self.same_best).mean() * 100)
            report["kl_mean"] = float(divergence.mean())
            report["kl_p99"] = float(np.quantile(divergence, 0.99))
        return report


def evaluate(
    program: Program, against: Program | None, windows: Sequence[Window], report: Callable[[int], object] | None = None
) -> Comparison:
    """Compute all windows with one program, or with two beside each other. `report` is told of tokens done."""
    seen = Comparison()
    for window in windows:
        for first in range(0, len(window.tokens), STEP_TOKENS):
            inputs = chunk_inputs(window.tokens, first, STEP_TOKENS)
            targets = window.tokens[first + 1 : first + len(inputs.token_ids) + 1]
            begin = max(window.first_scored - 1 - first, 0)
            own = _distributions(program, inputs, begin, len(targets))
            other = None if against is None else _distributions(against, inputs, begin, len(targets))
            for at, log_probs in own:
                beside = None if other is None else next(other)[1]
                seen.add(log_probs, beside, targets[at : at + len(log_probs)])
            if report is not None:
                report(len(inputs.token_ids))
    return seen


def chunk_inputs(tokens: Ints, first: int, most: int) -> StepInputs:
    """A step that computes some tokens of a window, whose blocks are the first ones of the cache, and gives all their
    states."""
    end = min(first + most, len(tokens))
    num_blocks = -(-end // BLOCK_SIZE)
    return StepInputs(
        token_ids=tokens[first:end],
        positions=np.arange(first, end, dtype=np.int32),
        past_lens=np.array([first], np.int32),
        starts=np.array([0, end - first], np.int32),
        block_ids=np.arange(1, num_blocks + 1, dtype=np.int32),
        block_starts=np.array([0, num_blocks], np.int32),
        max_context_len=end,
        output_rows=np.arange(end - first, dtype=np.int32),
        slots=np.zeros(0, np.int64),
        num_fillers=0,
        num_scored=end - first,
    )


def _distributions(program: Program, inputs: StepInputs, begin: int, end: int) -> Iterator[tuple[int, Doubles]]:
    """Log probabilities after the tokens `begin` to `end` of a step, a few rows at a time, with the first row's
    number."""
    program.start(inputs)
    hidden = program.hidden_states()
    for first in range(begin, end, MAX_HEAD_ROWS):
        logits = program.logits(hidden[first : min(first + MAX_HEAD_ROWS, end)])
        rows = max(PIECE_NUMBERS // logits.shape[1], 1)
        for at in range(0, len(logits), rows):
            yield first + at, log_probabilities(logits[at : at + rows])


def log_probabilities(logits: NDArray[np.float32]) -> Doubles:
    """Logarithms of the softmax of `[rows, vocab]`, in float64: in float32 a divergence would drown in its sums."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide
