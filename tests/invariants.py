"""What must hold of a scheduler between any two steps; see `check_invariants`."""

from __future__ import annotations

from collections import Counter

from chairlift.core.prefix import block_content, chain_key, root_key
from chairlift.core.scheduler import Scheduler
from chairlift.core.sequence import Sequence, State
from oracle import check


def live_sequences(scheduler: Scheduler) -> list[Sequence]:
    return [s for sequences in scheduler._live.values() for s in sequences]


def check_invariants(scheduler: Scheduler) -> None:
    """Recount everything from the sequences alone and compare.

    Raises:
        AssertionError: with the invariant that does not hold.
    """
    kv, pool, index = scheduler.kv, scheduler.kv.pool, scheduler.kv.index
    sequences = live_sequences(scheduler)
    blank, kept = list(pool._blank), list(pool._kept)
    check(len(set(blank) | set(kept)) == len(blank) + len(kept), "a free block stands in two places")
    refs = Counter(block for s in sequences for block in s.blocks)
    for block in range(pool.num_blocks):
        check(pool.refs(block) == refs[block], "references differ from the block tables")
        check((pool.refs(block) == 0) == (block in pool._kept or block in blank), "free means not referenced")
    check(all(block not in index for block in blank), "a blank block can be found")
    check(all(block in index for block in kept), "a kept block cannot be found")
    check(pool.num_free + pool.num_held == pool.num_blocks, "blocks free + held = total")
    check(len(index._blocks) == len(index._keys), "the index is no bijection")
    for key, (block, parent, content) in index._blocks.items():
        check(index._keys[block] == key and chain_key(parent, content) == key, "a key does not follow from its content")

    slots = [s.slot for s in sequences if s.slot >= 0]
    check(len(set(slots)) == len(slots), "two sequences in one slot")
    free = scheduler._running.free_slots
    check(sorted(slots + free) == list(range(scheduler.limits.max_num_seqs)), "slots free + taken = all")
    for s in sequences:
        check_sequence(scheduler, s, kv.block_size)


def check_sequence(scheduler: Scheduler, s: Sequence, block_size: int) -> None:
    check(s.state is not State.GONE, "a sequence that ended is still live")
    check(len(set(s.blocks)) == len(s.blocks), "a block twice in one table")
    computed = len(s.tokens) - 1 if s.state is State.DECODING else s.computed
    check(0 <= computed < len(s.tokens) <= s.end, "0 <= computed < known <= end")
    check(len(s.blocks) * block_size >= computed, "computed tokens without a block")
    check(len(s.blocks) <= -(-len(s.tokens) // block_size), "more blocks than known tokens need")
    if s.state in (State.WAITING, State.FORKING):
        check(not s.blocks and s.computed == 0, "one that waits holds blocks")
    check((s.slot >= 0) == (s.state is not State.WAITING), "a slot exactly while running")
    if s.state is State.PREFILLING:
        check(s in scheduler._running.prefilling, "a prefilling sequence nobody schedules")
    if s.state is State.DECODING:
        check(s in scheduler._running.decoding, "a decoding sequence nobody schedules")
    if s.state is State.WAITING and (s.choice == 0 or s.preemptions):
        check(s.order in scheduler._waiting._waiting, "a waiting sequence outside the queue")  # type: ignore[attr-defined]
    key = root_key(s.request.salt)
    for i in range(s.published):
        parent, content = key, block_content(s.tokens[i * block_size : (i + 1) * block_size])
        key = chain_key(parent, content)
        published = scheduler.kv.index._keys.get(s.blocks[i])
        check(published in (None, key), "a block in a table is published as something else")
