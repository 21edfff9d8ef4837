"""An executor without a model whose tokens depend on everything it reads from the cache, and the model it must equal.

The cache holds one digest per token. A token's digest depends on the digest before it, so it stands for the whole
history; a sampled token depends on every digest of its context, read back through the block table. A block given to
two sequences, published too early, freed too early, or a token lost or doubled, changes the text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from chairlift.core.types import CacheShape, Request, StepPlan, StepResult, TokenLogprob

VOCAB = 97
EOS = 0


def digest(previous: int, token: int, position: int, salt: bytes) -> int:
    return hash((previous, token, position, len(salt), int.from_bytes(salt[:8], "little")))


def sample(digests: list[int], choice: int) -> int:
    return hash((tuple(digests), choice)) % VOCAB


def expected_output(request: Request, choice: int, max_model_len: int) -> list[int]:
    """What the sequence must generate, computed without blocks, batches or a scheduler."""
    tokens = list(request.prompt)
    digests: list[int] = []
    for position, token in enumerate(tokens):
        digests.append(digest(digests[-1] if digests else 0, token, position, request.salt))
    limit = max_model_len - len(tokens)
    params = request.params
    if params.max_tokens is not None:
        limit = min(limit, params.max_tokens)
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(request.eos_token_ids))
    output: list[int] = []
    while len(output) < limit:
        output.append(sample(digests, choice))
        if output[-1] in ends:
            break
        digests.append(digest(digests[-1], output[-1], len(tokens) + len(output) - 1, request.salt))
    return output


@dataclass
class Row:
    request: Request
    choice: int
    tokens: list[int]
    table: list[int] = field(default_factory=list)
    computed: int = 0


@dataclass
class Done:
    value: StepResult | Exception

    def result(self) -> StepResult:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class OracleExecutor:
    """Runs plans on digests; raises AssertionError on any plan that breaks the contract of `core/types.py`.

    `row_errors` and `failures` inject faults: the slots whose rows fail in the next step, and how the next step fails
    as a whole ("submit" or "result").
    """

    def __init__(self, shape: CacheShape) -> None:
        self.shape = shape
        self.cache: list[list[int | None]] = [[None] * shape.block_size for _ in range(shape.num_blocks)]
        self.rows: dict[int, Row] = {}
        self.row_errors: set[int] = set()
        self.failure: str | None = None
        self.num_computed = 0
        self.num_steps = 0

    def submit(self, plan: StepPlan) -> Done:
        self.num_steps += 1
        for slot in plan.leaves:
            del self.rows[slot]
        for join in plan.joins:
            check(join.slot not in self.rows, "a slot is joined twice")
            self.rows[join.slot] = Row(join.request, join.choice, list(join.tokens))
        check(len(plan.block_slots) == len(plan.block_ids), "parallel lists")
        for slot, block in zip(plan.block_slots, plan.block_ids, strict=True):
            check(block not in self.rows[slot].table, "a block twice in one table")
            self.rows[slot].table.append(block)
        for chunk in plan.chunks:
            self.rows[chunk.slot].computed = min(chunk.start, self.rows[chunk.slot].computed or chunk.start)
        failure, self.failure = self.failure, None
        if failure == "submit":
            raise MemoryError
        if failure == "result":
            return Done(RuntimeError("the device is gone"))
        return Done(self._compute(plan))

    def _compute(self, plan: StepPlan) -> StepResult:
        result = StepResult(tokens=[])
        context = 0
        slots = [*plan.decodes, *(c.slot for c in plan.chunks)]
        check(len(set(slots)) == len(slots), "a slot twice in one step")
        for slot in plan.decodes:
            row = self.rows[slot]
            context += row.computed
            check(row.computed == len(row.tokens) - 1, "a decoding row lacks one token")
            self._write(row, row.computed, 1)
            self._sample(slot, row, result)
        check(context == plan.num_context_tokens, "the plan's sum of contexts")
        check(sum(c.count for c in plan.chunks) == plan.num_chunk_tokens, "the plan's sum of chunks")
        for chunk in plan.chunks:
            row = self.rows[chunk.slot]
            check(chunk.count > 0, "an empty chunk")
            check(chunk.start + chunk.count <= len(row.tokens), "a chunk past the known tokens")
            check(chunk.samples == (chunk.start + chunk.count == len(row.tokens)), "samples exactly at the end")
            row.computed = chunk.start
            self._write(row, chunk.start, chunk.count)
            if chunk.scores:
                last = min(chunk.start + chunk.count, len(row.request.prompt) - 1)
                scores = [TokenLogprob(row.tokens[p], -float(p), 1) for p in range(chunk.start + 1, last + 1)]
                result.prompt_logprobs[chunk.slot] = scores
            if chunk.samples:
                self._sample(chunk.slot, row, result)
            elif chunk.slot in self.row_errors:
                result.errors[chunk.slot] = "not a number"
        self.row_errors.clear()
        return result

    def _write(self, row: Row, start: int, count: int) -> None:
        size = self.shape.block_size
        for position in range(start, start + count):
            previous = self._read(row, position - 1) if position else 0
            value = digest(previous, row.tokens[position], position, row.request.salt)
            self.cache[row.table[position // size]][position % size] = value
        row.computed = start + count
        self.num_computed += count

    def _read(self, row: Row, position: int) -> int:
        value = self.cache[row.table[position // self.shape.block_size]][position % self.shape.block_size]
        if value is None:
            raise AssertionError("a cache entry is read before it was written")
        return value

    def _sample(self, slot: int, row: Row, result: StepResult) -> None:
        if slot in self.row_errors:
            result.errors[slot] = "not a number"
            result.tokens.append(-1)
            return
        token = sample([self._read(row, position) for position in range(row.computed)], row.choice)
        row.tokens.append(token)
        result.tokens.append(token)
        if row.request.params.logprobs is not None:
            result.logprobs[slot] = TokenLogprob(token, 0.0, 1)


def check(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)
