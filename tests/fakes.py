"""A device without arithmetic: tokens are a pure function of what a sequence reads from its cache.

Every cell of the fake cache holds a digest of the token there and of all cells before it, read through the block
table. A wrong block, a missing token, a block given to two sequences or a stale prefix hit changes the digest, and with
it the tokens. What a sequence should get is `expected(...)`, whatever its neighbours, chunks, preemptions and hits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from chairlift.core.types import CacheShape, Request, StepPlan, StepResult, TokenLogprob

VOCAB_SIZE = 1000
_MODULUS = (1 << 61) - 1


def digest(before: int, token: int) -> int:
    """Content of a cell, from that of the cell before it."""
    return (before * 1_000_003 + token * 7919 + 12345) % _MODULUS


def sampled(cell: int, request: Request, choice: int) -> int:
    """The token after a cell. With a temperature it depends on the request's seed and the choice as well."""
    if request.params.temperature > 0:
        cell = digest(digest(cell, request.params.seed or 0), choice)
    return cell % VOCAB_SIZE


def expected(request: Request, num_tokens: int, choice: int = 0) -> list[int]:
    """The first `num_tokens` tokens that a sequence gets if nothing ends it."""
    cell = 0
    for token in request.prompt:
        cell = digest(cell, token)
    tokens: list[int] = []
    for _ in range(num_tokens):
        tokens.append(sampled(cell, request, choice))
        cell = digest(cell, tokens[-1])
    return tokens


@dataclass(slots=True)
class _Row:
    request: Request
    choice: int
    tokens: list[int]
    table: list[int] = field(default_factory=list)


class FakeExecutor:
    """An executor over a cache of digests.

    `step_s` is how long a step takes. `gate`, when given, is acquired once for each step: a test releases it to let a
    step end. `fail_step(plan)` may raise, as a device does; `fail_row(request)` may return why a row fails.

    Raises:
        AssertionError: a plan that breaks the contract; also what `violations` keeps, since an engine may catch it.
    """

    def __init__(
        self,
        cache: CacheShape,
        *,
        step_s: float = 0.0,
        gate: threading.Semaphore | None = None,
        fail_step: Callable[[StepPlan], None] | None = None,
        fail_row: Callable[[Request], str | None] | None = None,
    ) -> None:
        self.cache = cache
        self.step_s = step_s
        self.gate = gate
        self.fail_step = fail_step
        self.fail_row = fail_row
        self.num_steps = 0
        self.submitted = threading.Semaphore(0)
        """Released at each submit: a test waits here until a step is on its way."""
        self.violations: list[str] = []
        self._rows: dict[int, _Row] = {}
        self._cells = [[-1] * cache.block_size for _ in range(cache.num_blocks)]

    def submit(self, plan: StepPlan) -> FakePending:
        self.num_steps += 1
        for slot in plan.leaves:
            self._require(slot in self._rows, f"slot {slot} leaves but did not join")
            del self._rows[slot]
        for join in plan.joins:
            self._require(join.slot not in self._rows, f"slot {join.slot} joins twice")
            self._rows[join.slot] = _Row(join.request, join.choice, list(join.tokens))
        for slot, block in zip(plan.block_slots, plan.block_ids, strict=True):
            self._require(0 <= block < self.cache.num_blocks, f"block {block} is outside the cache")
            self._rows[slot].table.append(block)
        self.submitted.release()
        return FakePending(self, plan)

    def compute(self, plan: StepPlan) -> StepResult:
        """The device's work for one step."""
        if self.gate is not None:
            self.gate.acquire()
        if self.step_s:
            time.sleep(self.step_s)
        if self.fail_step is not None:
            self.fail_step(plan)
        result = StepResult([])
        for slot in plan.decodes:
            row = self._rows[slot]
            self._sample(slot, row, self._write(row, len(row.tokens) - 1, 1), result)
        for chunk in plan.chunks:
            row = self._rows[chunk.slot]
            self._require(chunk.count > 0, "an empty chunk")
            cell = self._write(row, chunk.start, chunk.count)
            if chunk.scores:
                last = min(chunk.start + chunk.count, len(row.request.prompt) - 1)
                scored = [TokenLogprob(row.tokens[i], -1.0, 1) for i in range(chunk.start + 1, last + 1)]
                result.prompt_logprobs[chunk.slot] = scored
            if chunk.samples:
                self._require(chunk.start + chunk.count == len(row.tokens), "a sampling chunk ends too early")
                self._sample(chunk.slot, row, cell, result)
        return result

    def _write(self, row: _Row, start: int, count: int) -> int:
        """Fill the cells of `count` tokens and return the last one."""
        cell = 0
        for position in range(start):
            held = self._cells[row.table[position // self.cache.block_size]][position % self.cache.block_size]
            cell = digest(cell, row.tokens[position])
            self._require(held == cell, f"the cache does not hold what request {row.request.id} computed at {position}")
        for position in range(start, start + count):
            cell = digest(cell, row.tokens[position])
            self._cells[row.table[position // self.cache.block_size]][position % self.cache.block_size] = cell
        return cell

    def _sample(self, slot: int, row: _Row, cell: int, result: StepResult) -> None:
        reason = self.fail_row(row.request) if self.fail_row is not None else None
        if reason is not None:
            result.errors[slot] = reason
            result.tokens.append(-1)
            return
        token = sampled(cell, row.request, row.choice)
        row.tokens.append(token)
        result.tokens.append(token)
        if row.request.params.logprobs is not None:
            top = tuple((token + i, -0.5 - i) for i in range(row.request.params.logprobs))
            result.logprobs[slot] = TokenLogprob(token, -0.5, 1, top)

    def _require(self, holds: bool, message: str) -> None:
        if not holds:
            self.violations.append(message)
            raise AssertionError(message)


@dataclass(slots=True)
class FakePending:
    executor: FakeExecutor
    plan: StepPlan

    def result(self) -> StepResult:
        return self.executor.compute(self.plan)


def prompt(length: int, first: int = 1) -> Sequence[int]:
    """A prompt that differs from others with another `first`."""
    return [(first * 31 + i * 7) % VOCAB_SIZE for i in range(length)]
