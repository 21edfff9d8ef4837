"""The swarm is itself tested: defects that such schedulers have had, put into ours one at a time, must not survive it.

A mutant is a line of `src/chairlift/core` and what stands there instead. It is compiled in memory, and the functions
that differ get its code for the length of the test.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import CodeType, FunctionType, ModuleType

import pytest

from chairlift.core import blocks, kv, ordering, prefix, running, scheduler, sequence
from core.swarm import run

NUM_SEEDS = 40


@dataclass(frozen=True)
class Mutant:
    defect: str
    module: ModuleType
    line: str
    instead: str


MUTANTS = [
    # ------------------------------------------------ blocks and their references
    Mutant("a shared block is not counted", blocks, "self._refs[block] += 1", "self._refs[block] += 0"),
    Mutant("a found block stays free", blocks, "del self._kept[block]", "pass"),
    Mutant("an overwritten block can still be found", blocks, "return block, True", "return block, False"),
    Mutant(
        "one block is never given back",
        kv,
        "in reversed(sequence.blocks):\n            self.pool",
        "in reversed(sequence.blocks[1:]):\n            self.pool",
    ),
    Mutant(
        "more blocks are taken than there are",
        scheduler,
        "len(sequence.blocks), kv.pool.num_free)",
        "len(sequence.blocks), kv.pool.num_blocks)",
    ),
    # ------------------------------------------------ the prefix cache
    Mutant("a hit leaves nothing to compute", kv, "limit = len(sequence.tokens) - 1", "limit = len(sequence.tokens)"),
    Mutant("a hit skips what was to be scored", kv, "limit = min(limit, sequence.scored)", "pass"),
    Mutant(
        "a hit has a hole",
        kv,
        "if block is None:\n                break",
        "if block is None:\n                continue",
    ),
    Mutant(
        "a block is found before it is computed",
        scheduler,
        "plan.num_chunk_tokens += count",
        "plan.num_chunk_tokens += count; kv.publish(sequence, start + count)",
    ),
    Mutant(
        "a block is found before it is full",
        kv,
        "range(sequence.published, computed // self.block_size)",
        "range(sequence.published, len(sequence.blocks))",
    ),
    Mutant("other tenants' blocks are found", prefix, 'sha256(len(salt).to_bytes(8, "little") + salt)', 'sha256(b"")'),
    Mutant(
        "a key forgets what came before the block",
        prefix,
        "return sha256(parent + content).digest()",
        "return sha256(content).digest()",
    ),
    Mutant(
        "two blocks have one key",
        prefix,
        "if key not in self._blocks and block not in self._keys",
        "if block not in self._keys",
    ),
    # ------------------------------------------------ slots and rows
    Mutant(
        "a preempted row stays in the executor",
        running,
        "if sequence.joined:",
        "if sequence.joined and state is State.GONE:",
    ),
    Mutant(
        "a row that left decodes on",
        running,
        "if sequence.state is State.DECODING:\n            self._changed = True",
        "if sequence.state is State.GONE:\n            self._changed = True",
    ),
    Mutant("slot 0 is never given back", running, "if sequence.slot >= 0:", "if sequence.slot > 0:"),
    Mutant("choices take slots that there are not", scheduler, "if num_slots > room:", "if num_slots > room + 1:"),
    Mutant(
        "the sum of contexts drifts",
        running,
        "self.num_context_tokens += len(self.decoding)",
        "self.num_context_tokens += 1",
    ),
    # ------------------------------------------------ budget and boundaries
    Mutant(
        "decoding rows are not in the budget",
        scheduler,
        "max_num_batched_tokens - len(running.slots)",
        "max_num_batched_tokens",
    ),
    Mutant("a sequence joins without a token", scheduler, "while room > 0 and budget > 0", "while room > 0"),
    Mutant(
        "a block is asked for one token late",
        scheduler,
        "if computed % block_size == 0:",
        "if computed % block_size == 1 % block_size:",
    ),
    Mutant("a full block is noticed one token late", scheduler, "* block_size + 1)", "* block_size + 2)"),
    Mutant(
        "the length is noticed at the block's end",
        scheduler,
        "sequence.mark = min(sequence.end, (",
        "sequence.mark = max(0, (",
    ),
    Mutant("one token too many", sequence, "len(self.tokens) >= self.end", "len(self.tokens) > self.end"),
    # ------------------------------------------------ preemption, choices, endings
    Mutant(
        "the first in the order may be the victim",
        scheduler,
        "if s.order > sequence.order and s.blocks",
        "if s is not sequence and s.blocks",
    ),
    Mutant("a victim frees nothing", scheduler, "(s for s in later if self.kv.frees_some(s))", "iter(later)"),
    Mutant(
        "a preempted row gets a block",
        scheduler,
        "if sequence.state is not State.DECODING:\n                continue",
        "if sequence.state is State.GONE:\n                continue",
    ),
    Mutant(
        "a preempted sequence loses its last token",
        scheduler,
        "sequence.preemptions += 1",
        "sequence.preemptions += 1; del sequence.tokens[max(sequence.num_prompt, len(sequence.tokens) - 1) :]",
    ),
    Mutant(
        "a chunk goes from the prompt into the output",
        scheduler,
        "end = sequence.num_prompt if start < sequence.num_prompt else len(sequence.tokens)",
        "end = len(sequence.tokens)",
    ),
    Mutant(
        "scores are given out again after a preemption",
        scheduler,
        "scores[max(0, sequence.scored - chunk.start) :]",
        "scores",
    ),
    Mutant(
        "choices keep their slots while their lead waits",
        scheduler,
        "for one in (sequence, *sequence.siblings):",
        "for one in (sequence,):",
    ),
    Mutant(
        "choices share a block that is still to be filled",
        kv,
        "(source.num_prompt - 1) // self.block_size",
        "-(-source.num_prompt // self.block_size)",
    ),
    Mutant(
        "choices outlive the lead that had their prompt",
        scheduler,
        "for sibling in sequence.siblings:\n            # Choices",
        "for sibling in sequence.siblings[1:]:\n            # Choices",
    ),
    Mutant(
        "an abort in flight is forgotten",
        scheduler,
        "sequence.aborted = True\n                sequence.mark = 0",
        "sequence.aborted = True",
    ),
    Mutant(
        "an aborted sequence stays in the queue",
        ordering,
        "self._waiting.discard(sequence.order)\n        if len",
        "if len",
    ),
    Mutant(
        "tokens move to the neighbour when a row fails",
        scheduler,
        "keys = [s.key for s in rows]",
        "keys = keys[: len(rows)]",
    ),
]


class MutatedLoader(SourceFileLoader):
    """Loads a module from its source with one place changed."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(mutant.module.__name__, str(mutant.module.__file__))
        source = inspect.getsource(mutant.module)
        assert source.count(mutant.line) == 1, "the line to mutate is gone, or is there twice"
        self._source = source.replace(mutant.line, mutant.instead)

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._source, self.path)


def load_mutated(mutant: Mutant) -> ModuleType:
    loader = MutatedLoader(mutant)
    spec = spec_from_loader(mutant.module.__name__, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def functions(module: ModuleType) -> Iterator[FunctionType]:
    """Functions and methods that the module defines, by their place."""
    for value in vars(module).values():
        members = vars(value).values() if inspect.isclass(value) else [value]
        for member in members:
            if inspect.isfunction(member) and member.__module__ == module.__name__:
                yield member


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.defect)
def test_the_swarm_kills(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {f.__qualname__: f.__code__ for f in functions(load_mutated(mutant))}
    for function in functions(mutant.module):
        monkeypatch.setattr(function, "__code__", changed[function.__qualname__])
    for seed in range(NUM_SEEDS):
        try:
            run(seed, 150)
        except Exception as error:
            print(f"killed by seed {seed}: {type(error).__name__}: {error}")
            return
    pytest.fail(f"survived {NUM_SEEDS} worlds")
