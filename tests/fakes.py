"""A device without arithmetic, and the model it must equal: tokens are a function of what a sequence's cache holds.

Every cell of the fake cache holds a digest of the token there, of all tokens before it and of the request's salt.
Before a step computes anything, every row's past is read back through its block table and compared: a wrong block, a
block given to two sequences, one that is found too early or freed too early, a token lost or doubled is a violation.
What a sequence must get is `expected(...)`, whatever its neighbours, chunks, preemptions and hits.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from chairlift.core.types import CacheShape, Chunk, Request, StepPlan, StepResult, TokenLogprob

VOCAB_SIZE = 1000
_MODULUS = (1 << 61) - 1
_NOTHING = -1
"""In a cell that was never written, or by a step that failed."""


def check(condition: bool, what: str) -> None:
    """An assertion that stays under `python -O`.

    Raises:
        AssertionError: it does not hold.
    """
    if not condition:
        raise AssertionError(what)


def digest(before: int, token: int) -> int:
    """Content of a cell, from that of the cell before it."""
    return (before * 1_000_003 + token * 7919 + 12345) % _MODULUS


def digests(before: int, tokens: Sequence[int]) -> array[int]:
    """Contents of the cells of `tokens`, which follow a cell that holds `before`: 8 bytes each, so that what a server
    takes is not mostly what its device was replaced by."""
    cells = array("q")
    for token in tokens:
        before = digest(before, token)
        cells.append(before)
    return cells


def root(salt: bytes) -> int:
    """What stands before the first cell."""
    return digest(int.from_bytes(salt, "little"), len(salt))


def sampled(cell: int, request: Request, choice: int) -> int:
    """The token after a cell. With a temperature it depends on the request's seed and the choice as well."""
    if request.params.temperature > 0:
        cell = digest(digest(cell, request.params.seed or 0), choice)
    return cell % VOCAB_SIZE


def expected(request: Request, num_tokens: int, choice: int = 0) -> list[int]:
    """The first `num_tokens` tokens that a sequence gets if nothing ends it: no blocks, batches or scheduler."""
    cell = digests(root(request.salt), request.prompt)[-1]
    tokens: list[int] = []
    for _ in range(num_tokens):
        tokens.append(sampled(cell, request, choice))
        cell = digest(cell, tokens[-1])
    return tokens


def expected_answer(request: Request, choice: int, max_model_len: int) -> list[int]:
    """All tokens that a sequence gets: up to the one that ends it, or as many as there is room for."""
    params = request.params
    room = max_model_len - len(request.prompt)
    tokens = expected(request, room if params.max_tokens is None else min(room, params.max_tokens), choice)
    ends = {*params.stop_token_ids, *(() if params.ignore_eos else request.eos_token_ids)}
    for i, token in enumerate(tokens):
        if token in ends:
            return tokens[: i + 1]
    return tokens


@dataclass(slots=True)
class _Row:
    request: Request
    choice: int
    tokens: list[int]
    digests: array[int]
    """What the cache must hold for `tokens`, once they are computed."""
    table: list[int] = field(default_factory=list)
    computed: int | None = None
    """Tokens in the cache; None before the first chunk, which says where it starts."""


class FakeExecutor:
    """An executor over a cache of digests. It is strict: a plan that breaks the contract of `core/types.py` fails.

    `step_s` is how long a step takes. `gate`, when given, is acquired once for each step: a test releases it to let a
    step end. `fail_submit(plan)` and `fail_step(plan)` may raise, as a device does; `fail_row(request)` may return why
    a row fails.

    Raises:
        AssertionError: a violation. `violations` keeps it as well, since an engine takes it for a failed step.
    """

    def __init__(
        self,
        cache: CacheShape,
        *,
        step_s: float = 0.0,
        gate: threading.Semaphore | None = None,
        fail_submit: Callable[[StepPlan], None] | None = None,
        fail_step: Callable[[StepPlan], None] | None = None,
        fail_row: Callable[[Request], str | None] | None = None,
    ) -> None:
        self.cache = cache
        self.step_s = step_s
        self.gate = gate
        self.fail_submit = fail_submit
        self.fail_step = fail_step
        self.fail_row = fail_row
        self.num_steps = 0
        self.num_computed = 0
        """Tokens computed, recomputed ones included."""
        self.submitted = threading.Semaphore(0)
        """Released at each submit: a test waits here until a step is on its way."""
        self.violations: list[str] = []
        self._rows: dict[int, _Row] = {}
        self._cells = [array("q", [_NOTHING]) * cache.block_size for _ in range(cache.num_blocks)]
        self._num_holders: Counter[int] = Counter()
        """By block: rows with it in their table."""

    # ------------------------------------------------------------ what a plan changes

    def submit(self, plan: StepPlan) -> FakePending:
        self.num_steps += 1
        for slot in plan.leaves:
            self._require(slot in self._rows, f"slot {slot} leaves but did not join")
            self._num_holders.subtract(self._rows.pop(slot).table)
        for join in plan.joins:
            self._require(join.slot not in self._rows, f"slot {join.slot} joins twice")
            tokens = list(join.tokens)
            given = join.request.block_keys
            if given is not None:  # the scheduler does not know what they stand for
                tokens[: given.num_tokens] = join.request.prompt[: given.num_tokens]
            history = digests(root(join.request.salt), tokens)
            self._rows[join.slot] = _Row(join.request, join.choice, tokens, history)
        self._require(len(plan.block_slots) == len(plan.block_ids), "slots and ids of blocks are not parallel")
        for slot, block in zip(plan.block_slots, plan.block_ids, strict=True):
            self._require(0 <= block < self.cache.num_blocks, f"block {block} is outside the cache")
            self._require(block not in self._row(slot).table, f"block {block} is twice in one table")
            self._rows[slot].table.append(block)
            self._num_holders[block] += 1
        self.submitted.release()
        if self.fail_submit is not None:
            self.fail_submit(plan)
        return FakePending(self, plan)

    # ------------------------------------------------------------ what a plan computes

    def compute(self, plan: StepPlan) -> StepResult:
        """The device's work for one step."""
        if self.gate is not None:
            self.gate.acquire()
        if self.step_s:
            time.sleep(self.step_s)
        if self.fail_step is not None:
            self.fail_step(plan)
        self._check_counts(plan)
        # Everybody reads before anybody writes: rows are computed side by side.
        for slot in (*plan.decodes, *plan.fillers):
            self._check_decode(self._row(slot))
        for chunk in plan.chunks:
            self._check_chunk(chunk, self._row(chunk.slot))
        result = StepResult([])
        for slot in plan.fillers:
            row = self._rows[slot]
            self._write(row, len(row.tokens) - 1, row.digests[-1])
        for slot in plan.decodes:
            row = self._rows[slot]
            self._compute_row(slot, row, len(row.tokens) - 1, 1, True, result)
        for chunk in plan.chunks:
            row = self._rows[chunk.slot]
            self._compute_row(chunk.slot, row, chunk.start, chunk.count, chunk.samples, result)
            if chunk.scores and chunk.slot not in result.errors:
                last = min(chunk.start + chunk.count, len(row.request.prompt) - 1)
                places = range(chunk.start + 1, last + 1)
                num_top = row.request.params.prompt_logprobs or 0
                scored = [
                    TokenLogprob(token, -float(i), 1, _alternatives(token, num_top))
                    for i, token in zip(places, row.tokens[chunk.start + 1 : last + 1], strict=True)
                ]
                result.prompt_logprobs[chunk.slot] = scored
        return result

    def _compute_row(self, slot: int, row: _Row, start: int, count: int, samples: bool, result: StepResult) -> None:
        """Fill the cells of `count` tokens and sample after the last; a row that fails leaves nothing there."""
        reason = self.fail_row(row.request) if self.fail_row is not None else None
        for position in range(start, start + count):
            self._write(row, position, row.digests[position] if reason is None else _NOTHING)
        row.computed = start + count
        self.num_computed += count
        if reason is not None:
            result.errors[slot] = reason
            if samples:
                result.tokens.append(-1)
        elif samples:
            self._sample(slot, row, result)

    def _write(self, row: _Row, position: int, content: int) -> None:
        size = self.cache.block_size
        self._cells[row.table[position // size]][position % size] = content

    def _sample(self, slot: int, row: _Row, result: StepResult) -> None:
        token = sampled(row.digests[-1], row.request, row.choice)
        row.digests.append(digest(row.digests[-1], token))
        row.tokens.append(token)
        result.tokens.append(token)
        if row.request.params.logprobs is not None:
            result.logprobs[slot] = TokenLogprob(token, -0.5, 1, _alternatives(token, row.request.params.logprobs))

    # ------------------------------------------------------------ what a plan must be

    def _check_counts(self, plan: StepPlan) -> None:
        slots = [*plan.decodes, *plan.fillers, *(chunk.slot for chunk in plan.chunks)]
        self._require(len(set(slots)) == len(slots), "a slot is twice in one step")
        self._require(bool(slots), "a step computes nothing")
        num_chunk_tokens = sum(chunk.count for chunk in plan.chunks)
        self._require(num_chunk_tokens == plan.num_chunk_tokens, "the plan's sum of chunks is wrong")
        num_pairs = sum(c.count * c.start + c.count * (c.count + 1) // 2 for c in plan.chunks)
        self._require(num_pairs == plan.num_chunk_pairs, "the plan's sum of pairs is wrong")
        num_context_tokens = sum(len(self._row(slot).tokens) - 1 for slot in (*plan.decodes, *plan.fillers))
        self._require(num_context_tokens == plan.num_context_tokens, "the plan's sum of contexts is wrong")

    def _check_decode(self, row: _Row) -> None:
        self._require(row.computed == len(row.tokens) - 1, "a row decodes that lacks not exactly one token")
        self._check_cells(row, len(row.tokens) - 1, 1)

    def _check_chunk(self, chunk: Chunk, row: _Row) -> None:
        self._require(chunk.count > 0, "an empty chunk")
        self._require(row.computed in (None, chunk.start), "a chunk starts where the last one did not end")
        end = chunk.start + chunk.count
        self._require(end <= len(row.tokens), "a chunk ends past the known tokens")
        num_prompt = len(row.request.prompt)
        self._require(not chunk.start < num_prompt < end, "a chunk goes from the prompt into the output")
        self._require(chunk.samples == (end == len(row.tokens)), "a chunk must sample at the last known token only")
        self._require(not chunk.scores or row.request.params.prompt_logprobs is not None, "nobody asked for scores")
        self._check_cells(row, chunk.start, chunk.count)

    def _check_cells(self, row: _Row, start: int, count: int) -> None:
        """The past is what the row's tokens say, and where it is about to write nobody else reads or writes."""
        size, table = self.cache.block_size, row.table
        self._require(start + count <= len(table) * size, "a row has fewer blocks than its tokens need")
        for i in range(-(-start // size)):
            wanted = row.digests[i * size : min((i + 1) * size, start)]
            held = self._cells[table[i]][: len(wanted)]
            self._require(held == wanted, "the cache does not hold what a row's tokens say")
        for block in table[start // size : -(-(start + count) // size)]:
            self._require(self._num_holders[block] == 1, "a block is written while another row has it")

    def _row(self, slot: int) -> _Row:
        self._require(slot in self._rows, f"slot {slot} is used but did not join")
        return self._rows[slot]

    def _require(self, holds: bool, message: str) -> None:
        if not holds:
            self.violations.append(message)
        check(holds, message)


def _alternatives(token: int, num_top: int) -> tuple[tuple[int, float], ...]:
    """Those next to a token."""
    return tuple((token + i, -0.5 - i) for i in range(num_top))


@dataclass(slots=True)
class FakePending:
    executor: FakeExecutor
    plan: StepPlan

    def result(self) -> StepResult:
        return self.executor.compute(self.plan)


def prompt(length: int, first: int = 1) -> Sequence[int]:
    """A prompt that differs from others with another `first`."""
    return [(first * 31 + i * 7) % VOCAB_SIZE for i in range(length)]
