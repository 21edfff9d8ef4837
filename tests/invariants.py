"""What must hold of a scheduler between any two steps; see `check_invariants`."""

from __future__ import annotations

from collections import Counter

from chairlift.core.prefix import content_at, key_after, root_key
from chairlift.core.scheduler import Scheduler
from chairlift.core.sequence import Sequence, State
from chairlift.core.types import StepPlan
from fakes import check


def live_sequences(scheduler: Scheduler) -> list[Sequence]:
    return [s for sequences in scheduler._live.values() for s in sequences]


def check_invariants(scheduler: Scheduler) -> None:
    """Recount everything from the sequences alone and compare.

    Raises:
        AssertionError: with the invariant that does not hold.
    """
    live = live_sequences(scheduler)
    held = scheduler._running.held
    check_slots(scheduler, [*live, *held])
    check_blocks(scheduler, [*live, *held])
    check_queue(scheduler, live)
    check_counts(scheduler, live, held)
    for s in live:
        check_sequence(scheduler, s)
    for s in held:
        check(s.state is State.HELD, "a filler whose sequence is not over")
        check(scheduler._planner.batching.holds, "a filler outside a held batch")
        check(len(s.blocks) * scheduler.kv.block_size >= len(s.tokens), "a filler without a block to write to")
    check(not held or scheduler._running.num_live > 0, "a batch that is over keeps its fillers")


def check_slots(scheduler: Scheduler, sequences: list[Sequence]) -> None:
    """Every slot is taken by one sequence or free, and whoever runs is in the list that schedules it."""
    running = scheduler._running
    slots = [s.slot for s in sequences if s.slot >= 0]
    check(len(set(slots)) == len(slots), "two sequences in one slot")
    check(sorted(slots + running.free_slots) == list(range(running.max_num_seqs)), "slots free + taken = all")
    prefilling, decoding = set(running.prefilling), set(running.decoding)
    for s in sequences:
        check((s.slot >= 0) == (s.state is not State.WAITING), "a slot exactly while running")
        check(s.state is not State.PREFILLING or s in prefilling, "a prefilling sequence nobody schedules")
        check(s.state is not State.DECODING or s in decoding, "a decoding sequence nobody schedules")
    levels = Counter(s.order[0] for s in sequences if s.state in (State.PREFILLING, State.DECODING))
    check(running.num_by_level == levels, "those who run are miscounted by level")


def check_queue(scheduler: Scheduler, live: list[Sequence]) -> None:
    """Whoever waits is in the queue, once, at its level; nobody else is."""
    queued = list(scheduler._waiting)
    waiting = [s for s in live if s.state is State.WAITING and (s.choice == 0 or s.preemptions)]
    check(len(queued) == len(scheduler._waiting) == len(set(queued)), "the queue miscounts")
    check(set(queued) == set(waiting), "the queue holds not exactly those who wait")
    check(all(s.waits_since is not None for s in queued), "one in the queue that does not wait")
    best = min((s.order[0] for s in queued), default=0)
    for s in queued:
        check(best <= s.order[0] <= s.request.priority, "ageing moved one above all others, or down")
        check(s.passed <= scheduler.policy.max_bypass, "one was passed more often than allowed")


def check_counts(scheduler: Scheduler, live: list[Sequence], held: list[Sequence]) -> None:
    """What is exported, and what fairness goes by, equals a recount."""
    stats = scheduler.stats()
    num_running = sum(1 for s in live if s.slot >= 0)
    check(stats.num_running == num_running, "the count of running sequences is wrong")
    num_waiting = sum(1 for s in live if s.state is State.WAITING)
    check(stats.num_waiting == num_waiting, "the count of waiting sequences is wrong")
    check(sum(stats.waiting_by_reason.values()) == stats.num_waiting, "waiting by reason does not sum up")
    check(stats.num_used_blocks == len({b for s in (*live, *held) for b in s.blocks}), "used blocks are miscounted")
    if scheduler._service is not None:
        owners = Counter(s.owner for s in live)
        principals = Counter(s.owner[0] for s in live)
        check(scheduler._service.principals.active == principals, "active principals are miscounted")
        for principal, tenants in scheduler._service.tenants.items():
            wanted = {tenant: n for (one, tenant), n in owners.items() if one == principal}
            check(tenants.active == wanted, "active tenants are miscounted")


def check_blocks(scheduler: Scheduler, sequences: list[Sequence]) -> None:
    """Held blocks are exactly those in tables; the rest is free in one place; the index finds no blank one."""
    pool, index = scheduler.kv.pool, scheduler.kv.index
    blank, kept = pool._blank, pool._kept
    free = {*blank, *kept}
    check(len(free) == len(blank) + len(kept), "a free block stands in two places")
    refs = Counter(block for s in sequences for block in s.blocks)
    check(all(pool._refs[block] == num for block, num in refs.items()), "references differ from the block tables")
    check(len(pool._refs) - pool._refs.count(0) == len(refs), "a block is held by nobody")
    check(pool.num_repeats == refs.total() - len(refs), "holders beyond the first are miscounted")
    check(free.isdisjoint(refs) and len(free) + len(refs) == pool.num_blocks, "blocks free + held = total")
    check(not any(block in index for block in blank), "a blank block can be found")
    check(all(block in index for block in kept), "a kept block cannot be found")
    check(len(index._blocks) == len(index._keys), "the index is no bijection")
    for key, (block, _, _) in index._blocks.items():
        check(index._keys[block] == key, "the index finds a block under another's key")


def check_plan(scheduler: Scheduler, plan: StepPlan) -> None:
    """What a plan says is shared, just after it was made: tables are as they are when it is computed."""
    live = [*live_sequences(scheduler), *scheduler._running.held]
    refs = Counter(block for s in live for block in s.blocks)
    num_shared = (refs.total() - len(refs)) * scheduler.kv.block_size if plan.decodes else 0
    check(plan.num_shared_context_tokens == min(num_shared, plan.num_context_tokens), "shared tokens are miscounted")
    rows = [s for s in live if s.state in (State.DECODING, State.HELD)]
    if plan.decodes and len(rows) == sum(1 for s in live if s.blocks):
        tables = Counter(block for s in rows for block in s.blocks[: (len(s.tokens) - 1) // scheduler.kv.block_size])
        num_shared = (tables.total() - len(tables)) * scheduler.kv.block_size
        check(plan.num_shared_context_tokens == num_shared, "a shared block is not full of computed tokens")


def check_index(scheduler: Scheduler) -> None:
    """Every key follows from its content, recomputed; too slow for every step of a large cache."""
    for key, (_, parent, content) in scheduler.kv.index._blocks.items():
        check(key_after(parent, content) == key, "a key does not follow from its content")


def check_sequence(scheduler: Scheduler, s: Sequence) -> None:
    """0 <= computed < known <= end, in as many blocks as that takes; what is published is full and its own."""
    block_size = scheduler.kv.block_size
    check(s.state not in (State.GONE, State.HELD), "a sequence that ended is still live")
    check(s.doom is None, "a doomed sequence outlived its step")
    check(len(set(s.blocks)) == len(s.blocks), "a block twice in one table")
    computed = len(s.tokens) - 1 if s.state is State.DECODING else s.computed
    check(0 <= computed < len(s.tokens) <= s.end, "0 <= computed < known <= end")
    check(len(s.blocks) * block_size >= computed, "computed tokens without a block")
    most = s.end if scheduler._planner.reserves_max else len(s.tokens)
    check(len(s.blocks) <= -(-most // block_size), "more blocks than known tokens need")
    if s.state in (State.WAITING, State.FORKING):
        check(not s.blocks and s.computed == 0, "one that waits holds blocks")
        check(not s.awaited, "others wait for one that does not run")
    if s.state is State.FORKING:
        lead = scheduler._live[s.request.id][0]
        check(lead.state is State.PREFILLING, "a choice has a slot and waits for a lead that does not run")
    check(s.published * block_size <= computed, "a block was published before it was full")
    for key in s.awaited[-1:]:
        coming = scheduler.kv._coming.get(key)
        check(coming is None or coming.state is State.PREFILLING, "others wait for a block that nobody computes")
    if s.published and scheduler.kv._enable_prefix_caching:
        check_published(scheduler, s)


def check_published(scheduler: Scheduler, s: Sequence) -> None:
    """What the index says of the last block in a table follows from the sequence's tokens and its salt."""
    block_size = scheduler.kv.block_size
    last = s.published - 1
    content = content_at(s.request, s.tokens, last, block_size)
    check(s.chain[0] == root_key(s.request.salt), "a chain with another salt's root")
    key = key_after(s.chain[last], content)
    check(key == s.chain[last + 1], "a chain does not follow from its tokens")
    published = scheduler.kv.index._keys.get(s.blocks[last])
    check(published in (None, key), "a block in a table is published as something else")
