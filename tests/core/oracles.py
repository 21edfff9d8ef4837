"""Second opinions on a scheduler: who may join before whom, and what each sequence cost.

The scheduler keeps counts and takes shortcuts; here everything is worked out anew, from the queue, the tables and the
plans alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from chairlift.core.background import MAX_HELD_BACK_SEQS, MAX_HELD_BACK_TOKENS, is_background, max_tokens_alone
from chairlift.core.planner import MAX_SET_ASIDE
from chairlift.core.policy import DYNAMIC_WAIT_S
from chairlift.core.scheduler import Scheduler
from chairlift.core.sequence import Sequence, State
from chairlift.core.types import Finish, FinishReason, PreemptReason, Request, StepOutput, StepPlan, WaitReason
from fakes import check

Key = tuple[int, int]


class Door:
    """Who joins, who is sent back, and who is left outside although there is room."""

    def __init__(self, scheduler: Scheduler, ledger: Ledger) -> None:
        self._scheduler = scheduler
        self._ledger = ledger
        self._planner = planner = scheduler._planner
        self._serials: dict[int, int] = {}
        self._priorities: set[int] = set()
        self._passed: Counter[Key] = Counter()
        self._num_joined = 0
        """Slots taken in this step."""
        self._joined: set[int] = set()
        """Requests that joined in this step."""
        self._joiners: list[Sequence] = []
        self._short_of_blocks = False
        """Whether somebody was preempted for blocks in this step."""
        self._made_room_for: set[int] = set()
        self._num_preemptions = 0
        self._latest = 0.0
        self.clock_is_steady = True
        """Time never went back."""
        self.num_priority_steps = 0
        """Steps in which somebody made room for one of a better level."""
        self.num_in_vain = 0
        """Those after which that one had not joined."""
        self.num_shared_steps = 0
        """Steps that the background and others took part in."""
        self._num_lacking = 0
        """Steps in a row in which others lacked slots or blocks and the background had some."""
        self._join, self._preempt, self._make_room = planner._join, planner._preempt, planner._make_room
        planner._join = self.on_join  # type: ignore[method-assign]
        planner._preempt = self.on_preempt  # type: ignore[method-assign]
        planner._make_room = self.on_make_room  # type: ignore[method-assign]

    def on_add(self, request: Request) -> None:
        self._serials[request.id] = len(self._serials)
        self._priorities.add(request.priority)

    # ------------------------------------------------------------ the order

    def _place(self, s: Sequence) -> tuple[float, ...]:
        """Where a sequence stands in its line: by arrival, or by deadline."""
        request, policy = s.request, self._scheduler.policy
        when = request.arrival
        if policy.scheduling_policy == "deadline":
            deadlines = [d for d in (request.ttft_deadline, request.e2e_deadline) if d is not None]
            when = min(deadlines, default=when + (policy.priority_ageing_s or 1e12))
        return when, self._serials[request.id], s.choice

    def _goes_before(self, one: Sequence, other: Sequence) -> bool:
        """Whether `one` surely stands before `other`: equals may go either way."""
        if one.order[0] != other.order[0]:
            return one.order[0] < other.order[0]
        service = self._scheduler._service
        if service is None or one.owner == other.owner:
            return self._place(one) < self._place(other)
        (principal, tenant), (other_principal, other_tenant) = one.owner, other.owner
        if principal != other_principal:
            return service.principals.service[principal] < service.principals.service[other_principal]
        served = service.tenants[principal].service
        return served[tenant] < served[other_tenant]

    def _first(self, sequences: list[Sequence]) -> Sequence:
        """Who of several must be served next: of the best level, the least served principal, its least served tenant,
        whoever came first."""
        level = min(s.order[0] for s in sequences)
        rest = [s for s in sequences if s.order[0] == level]
        service = self._scheduler._service
        if service is not None:
            principals = service.principals.service
            least = min(principals[s.owner[0]] for s in rest)
            rest = [s for s in rest if principals[s.owner[0]] == least]
            tenants = {s: service.tenants[s.owner[0]].service[s.owner[1]] for s in rest}
            leasts = {s.owner[0]: min(tenants[o] for o in rest if o.owner[0] == s.owner[0]) for s in rest}
            rest = [s for s in rest if tenants[s] == leasts[s.owner[0]]]
        return min(rest, key=self._place)

    def _waiting(self) -> list[Sequence]:
        """Everybody who waits for a slot, in the queue or looked past."""
        live = [s for sequences in self._scheduler._live.values() for s in sequences]
        return [s for s in live if s.state is State.WAITING and s.waits_since is not None]

    # ------------------------------------------------------------ what happens in a step

    def on_join(self, sequence: Sequence, matched: list[int], now: float) -> int:
        queue, waits = list(self._scheduler._waiting), self._waiting()
        check(not self._short_of_blocks, "one joins in a step that had to preempt for blocks")
        obstacle = None if self._planner.batching.holds else self._obstacle(sequence, 1 << 30)
        check(obstacle is None, f"{sequence.key} joins against an obstacle: {obstacle}")
        kept_out = [s for s, reason in self._planner.set_aside if s.preemptions and reason is WaitReason.BLOCKS]
        check(not kept_out, "one that was preempted for blocks is passed")
        first = self._first([*queue, sequence])
        check(first is sequence, f"{sequence.key} joins before {first.key}, which stands before it")
        for s in waits:
            if s not in queue:
                self._passed[s.key] += 1
                check(
                    self._passed[s.key] <= self._scheduler.policy.max_bypass, "one was passed more often than allowed"
                )
        if self._planner.batching.holds:
            check(self._scheduler._running.num_taken == self._num_joined, "one joins a batch that runs already")
            check(self._num_joined > 0 or self._may_open([*waits, sequence], now), "a batch opens too early")
        self._joined.add(sequence.request.id)
        self._joiners.append(sequence)
        num_slots = self._join(sequence, matched, now)
        self._num_joined += num_slots
        return num_slots

    def _may_open(self, waits: list[Sequence], now: float) -> bool:
        """Whether a held batch is full or due, or nothing more can come."""
        policy, planner = self._scheduler.policy, self._planner
        wait_s = policy.max_batch_wait_s
        if wait_s is None and policy.batching == "dynamic":
            wait_s = DYNAMIC_WAIT_S
        is_due = wait_s is not None and any(now >= s.request.arrival + wait_s for s in waits)
        num_seqs = sum(1 + len(s.siblings) for s in waits)
        return planner.closed or num_seqs >= planner.max_num_seqs or is_due

    def on_preempt(self, sequence: Sequence, by: Sequence, reason: PreemptReason, now: float) -> None:
        check(sequence.state in (State.PREFILLING, State.DECODING), "one is preempted that does not run")
        if reason is PreemptReason.PRIORITY:
            check(sequence.order[0] > by.order[0], "one is preempted for the priority of its equal")
            self._made_room_for.add(by.request.id)
        else:
            check(sequence.rank >= by.rank, "one is preempted for a later one's blocks")
            self._check_background_gave_first(sequence)
            check(not self._planner.reserves_max, "blocks that were reserved are missing")
            self._short_of_blocks = True
        self._ledger.on_preempt(sequence)
        self._preempt(sequence, by, reason, now)

    def on_make_room(self, sequence: Sequence, running: list[Sequence], now: float) -> bool:
        """Nobody is preempted in vain: a victim that frees nothing goes only after all that free something."""
        holders = [s for s in running if s.blocks]
        frees = {s.key: self._scheduler.kv.frees_some(s) for s in holders}
        made = self._make_room(sequence, running, now)
        victims = [s for s in holders if s.state is State.WAITING]
        spared = [s for s in holders if s.rank > sequence.rank and s.state is not State.WAITING]
        check(all(s.rank > sequence.rank for s in victims), "a victim stands before the one it made room for")
        vain = any(not frees[s.key] for s in victims) and any(frees[s.key] for s in spared)
        check(not vain, "a victim freed nothing while another would have")
        check(made == (self._scheduler.kv.pool.num_free > 0), "room was made, or not, against what is said")
        check(made or not spared, "one found no room although others come after it")
        return made

    def _check_background_gave_first(self, victim: Sequence) -> None:
        """Nobody gives blocks while the background holds some that would do.

        Rows that decode are in the plan already when prompts come to it.
        """
        if is_background(victim) or not self._planner.may_preempt:
            return
        for s in self._scheduler._running.live():
            is_planned = victim.state is State.PREFILLING and s.state is State.DECODING
            in_vain = self._scheduler.policy.prefill_first or is_planned or not self._scheduler.kv.frees_some(s)
            check(not is_background(s) or in_vain, f"{victim.key} gives blocks, and the background keeps its own")

    # ------------------------------------------------------------ after a step was planned

    def on_plan(self, plan: StepPlan, now: float) -> None:
        """A step was planned, or nothing was found to compute."""
        planner = self._planner
        self._latest = max(self._latest, now)
        preempted = planner.num_preemptions != self._num_preemptions
        self._num_preemptions = planner.num_preemptions
        if self._made_room_for:
            self._check_room_was_needed(plan)
            self._made_room_for.clear()
        if not planner.batching.holds:
            check(all(s in planner.chunked for s in self._joiners), "one joins and gets no token")
        self._check_background(plan)
        self._joined.clear()
        self._joiners.clear()
        self._short_of_blocks = False
        self._num_joined = 0
        waits = self._waiting()
        for s in waits:
            check(s.passed == self._passed[s.key], "how often one was passed is miscounted")
            self._check_level(s)
        if waits and not preempted and not planner.batching.holds:
            self._check_left_outside(waits, plan)

    def _check_background(self, plan: StepPlan) -> None:
        """Beside others the background has a few slots and a few tokens, and nothing that they lack."""
        planner, running = self._planner, self._scheduler._running
        rows = [s for s in running.live() if is_background(s)]
        waits = [s for s in self._waiting() if not is_background(s)]
        if not rows or planner.batching.holds or not (waits or any(not is_background(s) for s in running.live())):
            self._num_lacking = 0
            return
        self.num_shared_steps += 1
        grew = any(is_background(s) for s in self._joiners)
        check(not (grew and waits), "the background takes a slot while others wait")
        num_choices = max(len(s.siblings) for s in rows)
        check(len(rows) <= MAX_HELD_BACK_SEQS + num_choices, "too much of the background runs beside others")
        chunks = zip(plan.chunks, planner.chunked, strict=True)
        num_tokens = sum(chunk.count for chunk, s in chunks if is_background(s))
        whole = not self._scheduler.policy.enable_chunked_prefill
        check(whole or num_tokens <= MAX_HELD_BACK_TOKENS, "too many tokens of the background beside others")
        lack = [s for s in waits if self._obstacle(s, 1 << 30) in (WaitReason.SLOTS, WaitReason.BLOCKS)]
        self._num_lacking = self._num_lacking + 1 if len(lack) == len(waits) > 0 else 0
        check(self._num_lacking < 3, "the background runs on while others lack what it has")

    def _check_room_was_needed(self, plan: StepPlan) -> None:
        """Count who was given room by those of lesser priority and did not take it: tokens may be used up, another may
        compute the beginning that both share, counters or a controller may have moved. It must be rare."""
        self.num_priority_steps += 1
        for s in self._waiting():
            if s.request.id in self._made_room_for - self._joined:
                self.num_in_vain += 1

    def _check_level(self, s: Sequence) -> None:
        ageing_s, level, request = self._scheduler.policy.priority_ageing_s, s.order[0], s.request
        check(level >= min(self._priorities), "ageing moved one above all others")
        if level != request.priority:
            check(level < request.priority, "ageing moved one down")
            has_waited = ageing_s <= self._latest - request.arrival + 1e-9 or not self.clock_is_steady
            check(ageing_s > 0 and has_waited, "one aged that had not waited for it")

    def _check_left_outside(self, waits: list[Sequence], plan: StepPlan) -> None:
        """Whoever could have joined did, unless one before it cannot and may not be passed.

        With a controller the step may be full before its budget is used up.
        """
        if self._scheduler.controller.is_active:
            return
        prefilling = [s for s in self._scheduler._running.prefilling if s.state is State.PREFILLING]
        whole = {s for s, chunk in zip(self._planner.chunked, plan.chunks, strict=True) if chunk.samples}
        if not self._scheduler.policy.enable_chunked_prefill and not whole.issuperset(prefilling):
            return  # tokens are saved up for a prompt that must come whole
        budget = self._scheduler.limits.max_num_batched_tokens - plan.num_tokens
        obstacles = {s: self._obstacle(s, self._share(s, plan, budget)) for s in waits}
        blocked = [s for s in waits if obstacles[s] is not None]
        closers = [s for s in blocked if not self._may_be_passed(s, obstacles[s])]
        worn_out = any(self._passed[s.key] >= self._scheduler.policy.max_bypass for s in blocked)
        for s in waits:
            if obstacles[s] is None and not worn_out:
                # Counters move while nobody joins: who closed the queue need not be the first any longer.
                in_front = [b for b in blocked if self._scheduler._service or not self._goes_before(s, b)]
                closed = len(in_front) > MAX_SET_ASIDE or any(b in closers for b in in_front)
                check(closed, f"{s.key} could have joined, and nobody stood before it that may not be passed")

    def _share(self, s: Sequence, plan: StepPlan, budget: int) -> int:
        """What a step has to spare for one that waits."""
        scheduler = self._scheduler
        if not is_background(s) or not scheduler.policy.enable_chunked_prefill:
            return budget
        used = sum(c.count for c, one in zip(plan.chunks, self._planner.chunked, strict=True) if is_background(one))
        most = MAX_HELD_BACK_TOKENS if self._planner.holds_back else max_tokens_alone(scheduler.limits)
        return min(budget, most - used)

    def _is_held_back(self, s: Sequence) -> bool:
        """Whether one of the background must leave what is free to others, who are there or were a moment ago."""
        if not is_background(s) or not self._planner.holds_back:
            return False
        num_rows = sum(map(is_background, self._scheduler._running.live()))
        return num_rows >= MAX_HELD_BACK_SEQS or not all(map(is_background, self._waiting()))

    def _may_be_passed(self, s: Sequence, reason: WaitReason | None) -> bool:
        if reason is WaitReason.BLOCKS and s.preemptions:
            return False
        return reason is not WaitReason.TOKENS and self._passed[s.key] < self._scheduler.policy.max_bypass

    def _obstacle(self, s: Sequence, budget: int) -> WaitReason | None:
        """What keeps a sequence out of a step that has `budget` tokens to spare."""
        scheduler, kv = self._scheduler, self._scheduler.kv
        num_running = scheduler._running.num_taken
        if budget <= 0:
            return WaitReason.TOKENS
        if self._is_held_back(s):
            return WaitReason.SLOTS
        num_slots = 1 + sum(1 for one in s.siblings if one.state is State.WAITING)
        if num_running and num_running + num_slots > self._planner.max_num_seqs:
            return WaitReason.SLOTS
        matched = kv.match(s)
        if kv.is_coming(s, len(matched)):
            return WaitReason.PREFIX
        spare = 0 if self._planner.reserves_max else 1 + int(scheduler.policy.watermark * kv.pool.num_blocks)
        promised = sum(self._needs(one) - len(one.blocks) for one in scheduler._running.prefilling)
        fresh = self._needs(s) - sum(1 for block in matched if kv.pool.refs(block))
        if num_running and fresh + promised + spare > kv.pool.num_free:
            return WaitReason.BLOCKS
        start = len(matched) * kv.block_size
        lacking = s.num_prompt - start
        if lacking > budget and not scheduler.policy.enable_chunked_prefill:
            return WaitReason.TOKENS
        return None

    def _needs(self, s: Sequence) -> int:
        """Blocks for what it knows; with reservation, for all that it and its other choices can come to know."""
        size = self._scheduler.kv.block_size
        if not self._planner.reserves_max:
            return -(-len(s.tokens) // size)
        others = sum(1 for one in s.siblings if one.state in (State.WAITING, State.FORKING))
        return -(-s.end // size) * (1 + others) - others * ((s.num_prompt - 1) // size)


class Ledger:
    """What was computed for each sequence, by the plans; its `Finish` must say the same."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._slots: dict[int, Key] = {}
        self._num_known: Counter[Key] = Counter()
        self._high: Counter[Key] = Counter()
        """Most tokens that were ever computed or found at once."""
        self._before: dict[Key, int] = {}
        """The same before the last chunk."""
        self._num_chunks: Counter[Key] = Counter()
        self._recomputed: Counter[Key] = Counter()
        self._starts: dict[Key, int] = {}
        """Where the first chunk began."""
        self._over: set[int] = set()
        """Slots of a held batch whose sequences are over."""
        self._outputs: Counter[Key] = Counter()
        self.num_compared = 0
        self._num_idle_steps = 0
        self.longest_stall = 0
        """Most steps in a row in which no sequence came further than it had ever been, and none ended."""

    def on_plan(self, plan: StepPlan) -> None:
        """Right after planning: everybody who decodes is in the step, and chunks are as large as allowed."""
        scheduler, planner = self._scheduler, self._scheduler._planner
        decoding = [s.slot for ss in scheduler._live.values() for s in ss if s.state is State.DECODING]
        prefills_first = scheduler.policy.prefill_first or planner.batching.holds
        alone = prefills_first and bool(plan.chunks)
        check(sorted(plan.decodes) == ([] if alone else sorted(decoding)), "not everybody who decodes is in the step")
        for chunk, sequence in zip(plan.chunks, planner.chunked, strict=True):
            in_prompt = chunk.start < sequence.num_prompt
            whole = in_prompt and not scheduler.policy.enable_chunked_prefill
            if whole:
                check(chunk.start + chunk.count == sequence.num_prompt, "a prompt is cut although that is off")
            elif planner.threshold and plan.decodes:
                check(chunk.count <= planner.threshold, "a chunk beyond the threshold beside those who decode")
            if planner.reserves_max:
                check(len(sequence.blocks) * scheduler.kv.block_size >= sequence.end, "less is reserved than may come")

    def on_step(self, plan: StepPlan, output: StepOutput) -> None:
        for slot in plan.leaves:
            self._slots.pop(slot, None)
        for join in plan.joins:
            self._slots[join.slot] = join.request.id, join.choice
            self._num_known[join.request.id, join.choice] = len(join.request.prompt)
        for chunk in plan.chunks:
            key = self._slots[chunk.slot]
            end = chunk.start + chunk.count
            self._starts.setdefault(key, chunk.start)
            self._before[key] = high = max(self._high[key], chunk.start)
            self._recomputed[key] += max(0, min(high, end) - chunk.start)
            self._high[key] = max(high, end)
            self._num_chunks[key] += 1
        for slot in plan.decodes:
            key = self._slots[slot]
            self._high[key] = max(self._high[key], self._num_known[key] + self._outputs[key])
        advances = bool(output.keys or output.finishes) or any(
            self._high[self._slots[chunk.slot]] > self._before[self._slots[chunk.slot]] for chunk in plan.chunks
        )
        self._num_idle_steps = 0 if advances else self._num_idle_steps + 1
        self.longest_stall = max(self.longest_stall, self._num_idle_steps)
        if self._scheduler._planner.batching.holds:
            self._check_fillers(plan, output)
        for key in output.keys:
            self._outputs[key] += 1

    def _check_fillers(self, plan: StepPlan, output: StepOutput) -> None:
        """A held batch pays for all who ended by themselves, in every step of decodes, until the last one is over."""
        if not self._over.isdisjoint(plan.leaves):
            rows = {*plan.decodes, *(chunk.slot for chunk in plan.chunks)}
            check(self._over <= set(plan.leaves), "a batch that is over keeps a filler")
            check(rows <= {join.slot for join in plan.joins}, "fillers leave before their batch is over")
            self._over.clear()
        check(
            sorted(plan.fillers) == (sorted(self._over) if plan.decodes else []),
            f"fillers {plan.fillers} instead of {sorted(self._over)}",
        )
        slots = {key: slot for slot, key in self._slots.items()}
        natural = (FinishReason.STOP, FinishReason.LENGTH)
        self._over.update(slots[f.id, f.choice] for f in output.finishes if f.reason in natural)

    def on_preempt(self, sequence: Sequence) -> None:
        """What it was given from the cache counts, even if it computed nothing beyond."""
        for one in (sequence, *sequence.siblings):
            self._high[one.key] = max(self._high[one.key], one.computed)

    def on_finish(self, finish: Finish, *, clock_is_steady: bool) -> None:
        key = (finish.id, finish.choice)
        decisions = finish.decisions
        if clock_is_steady and finish.first_scheduled is not None:
            waited = sum(seconds for _, seconds in decisions.waited)
            check(abs(waited - (finish.first_scheduled - finish.arrival)) < 1e-6, "the waits do not add up")
        if finish.reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        self.num_compared += 1
        check(decisions.chunks == self._num_chunks[key], "chunks are miscounted")
        check(
            decisions.recomputed_tokens == self._recomputed[key],
            f"{key}: {decisions.recomputed_tokens} recomputed tokens are said, {self._recomputed[key]} were",
        )
        if finish.choice == 0 and not finish.num_preemptions:
            check(finish.num_cached_tokens == self._starts[key], "cached tokens are not those that were skipped")


@dataclass(frozen=True, slots=True)
class Task:
    """What a live sequence still has to do when no more work comes."""

    key: Key
    num_known: int
    num_lacking: int
    end: int


def tasks(scheduler: Scheduler) -> list[Task]:
    """Of all that is live."""
    found = []
    for s in (s for sequences in scheduler._live.values() for s in sequences):
        computed = len(s.tokens) - 1 if s.state is State.DECODING else s.computed
        found.append(Task(s.key, len(s.tokens), len(s.tokens) - computed, s.end))
    return found


def ideal_steps(scheduler: Scheduler, todo: list[Task], lengths: dict[Key, int]) -> int:
    """Fewest steps in which no scheduler could do more: by the longest sequence, by tokens, by slots, and by blocks.

    `lengths` are the tokens that each comes to have.
    """
    if not todo:
        return 0
    limits, size = scheduler.limits, scheduler.kv.block_size
    reserves, holds = scheduler._planner.reserves_max, scheduler._planner.batching.holds
    chunk = min(limits.max_num_batched_tokens, scheduler._planner.threshold or limits.max_num_batched_tokens)
    num_tokens = num_block_steps = 0
    steps = []
    for task in todo:
        num_more = max(1, lengths[task.key] - task.num_known)
        steps.append(-(-task.num_lacking // chunk) + num_more - 1)
        num_tokens += task.num_lacking + num_more - 1
        if reserves:
            num_block_steps += steps[-1] * -(-task.end // size)
        else:
            num_block_steps += sum(-(-(task.num_known + i) // size) for i in range(num_more))
    steps.sort(reverse=True)
    num_batches = -(-len(todo) // limits.max_num_seqs)
    ideal = max(
        sum(steps[:num_batches]) if holds else steps[0],
        -(-num_tokens // limits.max_num_batched_tokens),
        -(-sum(steps) // limits.max_num_seqs),
        -(-num_block_steps // max(1, scheduler.kv.pool.num_blocks - scheduler._planner._num_spare)),
    )
    # Where prefill goes first, nobody decodes in the steps that it takes.
    lacking = [task.num_lacking for task in todo if task.num_lacking > 1]
    num_prefills = max(-(-sum(lacking) // limits.max_num_batched_tokens), -(-max(lacking, default=0) // chunk))
    return ideal + (num_prefills if scheduler.policy.prefill_first else 0)
