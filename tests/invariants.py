"""What must hold of a scheduler between any two steps; see `check_invariants`."""

from __future__ import annotations

from collections import Counter

from chairlift.core.prefix import block_content, chain_key, root_key
from chairlift.core.scheduler import Scheduler
from chairlift.core.sequence import Sequence, State
from fakes import check


def live_sequences(scheduler: Scheduler) -> list[Sequence]:
    return [s for sequences in scheduler._live.values() for s in sequences]


def check_invariants(scheduler: Scheduler) -> None:
    """Recount everything from the sequences alone and compare.

    Raises:
        AssertionError: with the invariant that does not hold.
    """
    sequences = live_sequences(scheduler)
    check_blocks(scheduler, sequences)
    slots = [s.slot for s in sequences if s.slot >= 0]
    check(len(set(slots)) == len(slots), "two sequences in one slot")
    free = scheduler._running.free_slots
    check(sorted(slots + free) == list(range(scheduler.limits.max_num_seqs)), "slots free + taken = all")
    prefilling = {id(s) for s in scheduler._running.prefilling}
    decoding = {id(s) for s in scheduler._running.decoding}
    waiting = scheduler._waiting._waiting  # type: ignore[attr-defined]
    for s in sequences:
        check(s.state is not State.GONE, "a sequence that ended is still live")
        check(not s.aborted, "an aborted sequence outlived its step")
        check((s.slot >= 0) == (s.state is not State.WAITING), "a slot exactly while running")
        check(s.state is not State.PREFILLING or id(s) in prefilling, "a prefilling sequence nobody schedules")
        check(s.state is not State.DECODING or id(s) in decoding, "a decoding sequence nobody schedules")
        if s.state is State.WAITING and (s.choice == 0 or s.preemptions):
            check(s.order in waiting, "a waiting sequence outside the queue")
        if s.state is State.FORKING:
            lead = scheduler._live[s.request.id][0]
            check(lead.state is State.PREFILLING, "a choice has a slot and waits for a lead that does not run")
        check_computed(s, scheduler.kv.block_size)
        if s.published:
            check_published(scheduler, s)


def check_blocks(scheduler: Scheduler, sequences: list[Sequence]) -> None:
    """Held blocks are exactly those in tables; the rest is free in one place; the index finds no blank one."""
    pool, index = scheduler.kv.pool, scheduler.kv.index
    blank, kept = list(pool._blank), list(pool._kept)
    check(len(set(blank) | set(kept)) == len(blank) + len(kept), "a free block stands in two places")
    refs = Counter(block for s in sequences for block in s.blocks)
    check(pool._refs == [refs[block] for block in range(pool.num_blocks)], "references differ from the block tables")
    free = {block for block in range(pool.num_blocks) if not refs[block]}
    check(free == {*blank, *kept}, "free means not referenced")
    check(all(block not in index for block in blank), "a blank block can be found")
    check(all(block in index for block in kept), "a kept block cannot be found")
    check(pool.num_free + pool.num_held == pool.num_blocks, "blocks free + held = total")
    check(len(index._blocks) == len(index._keys), "the index is no bijection")
    for key, (block, parent, content) in index._blocks.items():
        check(index._keys[block] == key and chain_key(parent, content) == key, "a key does not follow from its content")


def check_computed(s: Sequence, block_size: int) -> None:
    """0 <= computed < known <= end, in as many blocks as that takes."""
    check(len(set(s.blocks)) == len(s.blocks), "a block twice in one table")
    computed = len(s.tokens) - 1 if s.state is State.DECODING else s.computed
    check(0 <= computed < len(s.tokens) <= s.end, "0 <= computed < known <= end")
    check(len(s.blocks) * block_size >= computed, "computed tokens without a block")
    check(len(s.blocks) <= -(-len(s.tokens) // block_size), "more blocks than known tokens need")
    if s.state in (State.WAITING, State.FORKING):
        check(not s.blocks and s.computed == 0, "one that waits holds blocks")
    check(s.published * block_size <= computed, "a block was published before it was full")


def check_published(scheduler: Scheduler, s: Sequence) -> None:
    """What the index says of the blocks in a table follows from the sequence's tokens and its salt."""
    block_size = scheduler.kv.block_size
    key = root_key(s.request.salt)
    for i in range(s.published):
        key = chain_key(key, block_content(s.tokens[i * block_size : (i + 1) * block_size]))
        published = scheduler.kv.index._keys.get(s.blocks[i])
        check(published in (None, key), "a block in a table is published as something else")
