"""Steps in which nothing is decided, taken many at a time: what makes a simulation fast.

A step is quiet if every row decodes, none ends, nobody can join, and blocks are there for those whose last one is full.
Taking a block is no decision then, but it happens in the order in which stepping would have done it: block ids, the
prefix index and the order of free blocks come out the same, bit for bit.

    row a          .    .    B    .    .    .    B    .    E         B: a block is full, E: the last token
    row b          B    .    .    .    B    .    .    .    B
                   |<------------ 8 quiet steps ---------->|

For schedulers without an executor: rows that left since the last step are not reported to anybody.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from chairlift.core.background import is_there
from chairlift.core.running import in_order
from chairlift.core.scheduler import Scheduler
from chairlift.core.sequence import Sequence, State
from chairlift.core.types import StepOutput, StepResult, WaitReason


def quiet_steps(scheduler: Scheduler, token: int) -> int:
    """For how many steps nothing will be decided if each row samples `token` in each; 0 if the next one may decide.

    Time decides as well: every one of these steps must begin and end before `next_decision_at`.
    """
    if not _is_quiet(scheduler, token):
        return 0
    rows = scheduler._running.decoding
    num_steps = scheduler._running.num_left - 1
    return _affordable(scheduler, rows, num_steps) if num_steps > 0 else 0


def quiet_rows(scheduler: Scheduler) -> tuple[int, int, int, int]:
    """What the next step computes if it is quiet: decoding rows, fillers, the cached tokens that both read, and which
    of these are shared.

    In the one after it, every decoding row reads one token more; nothing more is shared, since nobody joins.
    """
    running = scheduler._running
    num_context_tokens = running.num_context_tokens + running.num_filler_tokens
    num_shared_tokens = min(scheduler.kv.num_shared_tokens, num_context_tokens)
    return len(running.decoding), len(running.fillers), num_context_tokens, num_shared_tokens


def next_decision_at(scheduler: Scheduler) -> float | None:
    """The first point in time at which something is decided for its own sake: a deadline.

    Who waits may age meanwhile, but that is looked at only when somebody could join.
    """
    return scheduler._deadlines.next


def advance(scheduler: Scheduler, token: int, begins: Seq[float]) -> None:
    """Take `len(begins)` quiet steps at once, as if each had been scheduled at its time and committed with `token`.

    Raises:
        ValueError: no step, or so many that some decide something.
    """
    num_steps = len(begins)
    if not num_steps or not _is_quiet(scheduler, token):
        raise ValueError(f"{num_steps} steps are not quiet")
    running, size = scheduler._running, scheduler.kv.block_size
    rows = running.decoding
    # Whoever does not come to its mark gets tokens and nothing else, if no block is missing from the start.
    marked = rows
    if not scheduler._planner.needs_block:
        marked = [row for row in rows if row.mark - len(row.tokens) <= num_steps]
    takes: dict[int, list[Sequence]] = {}
    fills: dict[int, list[Sequence]] = {}
    num_taken = 0
    for row in marked:
        known = len(row.tokens)
        if known + num_steps >= row.end:
            raise ValueError(f"one of {num_steps} steps is the last of a row")
        for step in range(len(row.blocks) * size - known + 2, num_steps + 1, size):
            takes.setdefault(step, []).append(row)
            num_taken += 1
        # After step s a row has known + s tokens, of which the last is not computed.
        for step in range(-known % size + 1, num_steps + 1, size):
            fills.setdefault(step, []).append(row)
    if num_taken > scheduler.kv.pool.num_free:
        raise ValueError(f"{num_steps} steps take more blocks than are free")
    _settle(scheduler, begins)
    more = [token] * num_steps
    for row in rows:
        row.tokens += more
    for step in sorted({*takes, *fills}):
        _apply(scheduler, takes.get(step, []), fills.get(step, []), num_steps - step)
    scheduler._planner.needs_block = [row for row in marked if len(row.blocks) * size < len(row.tokens)]
    running.num_context_tokens += num_steps * len(rows)
    running.num_left -= num_steps
    running.leaves = []
    scheduler._step += num_steps


def step_once(scheduler: Scheduler, token: int, begin: float, end: float) -> StepOutput | None:
    """Take one step in which rows may come to their length and nothing else is decided, scheduled at `begin` and
    committed at `end`, before `next_decision_at`; None, and nothing is changed, if something is."""
    if not _is_quiet(scheduler, token):
        return None
    planner, running, kv = scheduler._planner, scheduler._running, scheduler.kv
    takes = [row for row in planner.needs_block if row.state is State.DECODING and kv.is_full(row)]
    if len(takes) > kv.pool.num_free:
        return None
    _settle(scheduler, [begin])
    planner.needs_block = []
    for row in sorted(takes, key=in_order):
        kv.reserve(row)
    running.leaves = []
    scheduler._step += 1
    output, num_rows = StepOutput(), len(running.decoding)
    scheduler._commit_decodes(StepResult([token] * num_rows), num_rows, output, end)
    scheduler._release_held()
    return output


def _is_quiet(scheduler: Scheduler, token: int) -> bool:
    """Whether the next step decides nothing, if no row comes to its length in it and there are blocks for all."""
    running = scheduler._running
    if scheduler._planned is not None or scheduler._ended.finishes or scheduler.controller.is_active:
        return False
    if is_there(running, scheduler._waiting):
        return False  # the next step weighs the background against whoever else is there
    running.refresh_decoding()
    rows = running.decoding
    if not rows or running.num_live != len(rows) or not _queue_stands(scheduler):
        return False
    # Who is to end with the next step whatever it gives has ended with the last one.
    return not running.num_watched or not [row for row in rows if row.matcher is not None or token in row.ends]


def _queue_stands(scheduler: Scheduler) -> bool:
    """Whether nobody who waits could join, whatever the rows do short of ending."""
    planner, running, waiting = scheduler._planner, scheduler._running, scheduler._waiting
    if not waiting or planner.batching.holds:
        return True
    if scheduler.policy.scheduling_policy != "fcfs" and waiting.best_level < running.worst_level:
        return False
    if planner.blocked_by is WaitReason.BLOCKS and not planner.may_join and planner.join_rule is None:
        return True
    return scheduler.limits.max_num_seqs <= running.num_taken or not running.free_slots


def _settle(scheduler: Scheduler, begins: Seq[float]) -> None:
    """What planning leaves behind in steps in which nobody joins."""
    planner, clocks = scheduler._planner, scheduler._clocks
    clocks.settle(begins[0])
    planner.chunked, planner.joined, planner.opens_at = [], [], None
    planner.max_num_seqs = scheduler.limits.max_num_seqs
    if not scheduler._waiting:
        planner.set_aside, planner.blocked_by = [], None
    elif planner.blocked_by is not WaitReason.BLOCKS or planner.may_join:
        planner.set_aside, planner.may_join = [], False
        planner.blocked_by = WaitReason.BATCH if planner.batching.holds else WaitReason.SLOTS
    clocks.turn(planner.waits_for)
    clocks.settle(begins[-1])


def _affordable(scheduler: Scheduler, rows: list[Sequence], num_steps: int) -> int:
    """The largest part of `num_steps` for which there are free blocks."""
    size, free = scheduler.kv.block_size, scheduler.kv.pool.num_free
    if len(rows) * (num_steps // size + 1) <= free:
        return num_steps
    # Steps that each row can take in the blocks it has.
    rooms = [len(row.blocks) * size - len(row.tokens) + 1 for row in rows]

    def num_blocks(steps: int) -> int:
        return sum(-(-(steps - room) // size) for room in rooms if steps > room)

    if num_blocks(num_steps) <= free:
        return num_steps
    low, high = 0, num_steps - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if num_blocks(middle) <= free else (low, middle - 1)
    return low


def _apply(scheduler: Scheduler, takes: list[Sequence], fills: list[Sequence], num_later: int) -> None:
    """One step's changes of blocks; the rows' last `num_later` tokens belong to later steps."""
    kv, service = scheduler.kv, scheduler._service
    for row in sorted(takes, key=in_order):
        kv.reserve(row)
    for row in fills:
        known = len(row.tokens) - num_later
        kv.publish(row, known - 1)
        if service is not None:
            service.go_on(row, known - row.num_prompt + kv.block_size)
        row.mark = min(row.end, known + kv.block_size)
