"""What one engine did, step by step: an `Observer` of it, of a simulated one, or of a journal that is replayed.

A step costs a few additions, and some more for each row that joins, leaves, or computes a chunk; decoding rows cost
nothing. Memory is bounded by the caps below, but for two numbers for each request: when it began and ceased to wait.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from chairlift.core.scheduler import Scheduler
from chairlift.core.types import Finish, Join, Request, StepOutput, StepPlan
from chairlift.report.outcomes import Outcomes
from chairlift.report.owners import MAX_POINTS, Service
from chairlift.report.rows import LEFT, About, Answer, Left, Row, Stay, about
from chairlift.report.spans import MAX_SPANS, Span, Spans

MAX_STAYS = 12_000
MAX_CHUNKS = 30_000
MIN_SPANS = 128
"""Of each engine, and points of its curves, however many engines share a page."""


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a run of which every stay in a slot is kept, in seconds from its start."""

    begin: float = 0.0
    end: float = inf


@dataclass(slots=True)
class Budget:
    """How many stays, and chunks in them, may still be kept: of all engines of a run together.

    Stays are kept whole. When one of the two is used up, those are left out that begin later.
    """

    num_stays: int = MAX_STAYS
    num_chunks: int = MAX_CHUNKS

    @property
    def is_spent(self) -> bool:
        return self.num_stays <= 0 or self.num_chunks <= 0


@dataclass(slots=True)
class _Over:
    """A slot whose sequence is over, until it is left or taken again."""

    stay: Stay | None
    step: int
    """Steps up to that one."""


class Timeline:
    """Follows one engine. `origin` is the time that the picture counts from; None: the first that is heard of."""

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        outcomes: Outcomes,
        *,
        origin: float | None = None,
        window: Window | None = None,
        budget: Budget | None = None,
        max_spans: int = MAX_SPANS,
    ) -> None:
        self.name = name
        self.origin = origin
        self.window = Window() if window is None else window
        self._budget = Budget() if budget is None else budget
        self.scheduler = scheduler
        self.spans = Spans(max_spans)
        policy = scheduler.policy
        self.service = Service(outcomes.names, policy.input_token_weight, policy.output_token_weight)
        self.stays: list[Stay] = []
        """Of the window, those that are over first in order of their ends."""
        self.stays_until = inf
        """Nobody who joined from then on is in `stays`."""
        self.queue_times = array("d")
        self.queue_changes = array("i")
        """When how many answers more or fewer waited, not in order."""
        self.num_steps = 0
        self.num_rows = 0
        """Decodes and chunks of all steps."""
        self.num_filler_rows = 0
        self.busy_s = 0.0
        self.last = -inf
        """End of the last step."""
        self.outcomes = outcomes
        self._rows: dict[int, Row] = {}
        """By slot."""
        self._by_key: dict[tuple[int, int], Row] = {}
        """Of sequences that have joined and are not over, preempted ones as well."""
        self._over: dict[int, _Over] = {}
        self._fresh: list[Row] = []
        """Rows that ride, and have not yet got a token by it."""
        self._last_decode: float | None = None
        self._open_stays: dict[int, Stay] = {}
        """By slot."""

    # ------------------------------------------------------------ what comes and goes

    def on_start(self, scheduler: Scheduler) -> None:
        """The record begins with a scheduler that may be at work already."""
        self.scheduler = scheduler
        policy = scheduler.policy
        self.service.input_weight, self.service.output_weight = policy.input_token_weight, policy.output_token_weight
        live: dict[int, list[tuple[int, int, bool]]] = {}
        known: dict[int, About] = {}
        for request, choice, slot, decodes in scheduler.in_flight():
            live.setdefault(request.id, []).append((choice, slot, decodes))
            known[request.id] = about(request)
        for request_id, answers in live.items():
            self.outcomes.ask(known[request_id], {choice for choice, _, _ in answers})
            for choice, slot, decodes in answers:
                if slot < 0:
                    self._note_queue(-inf, 1)
                else:
                    self._find(Answer(known[request_id], choice), slot, decodes=decodes)

    def _find(self, answer: Answer, slot: int, *, decodes: bool) -> None:
        """A row that is there when the record begins."""
        row = Row(answer, self.outcomes.owner(answer.about))
        self._by_key[row.key] = row
        self._sit(row, slot, -inf)
        if decodes:
            row.rides = True
            self._fresh.append(row)
            self.service.start(row.owner, 0)
            if row.stay is not None:
                row.stay.decodes_from = -inf

    def on_add(self, request: Request) -> None:
        """A request came. Who hears only of steps gives those that never joined to `add` in the end."""
        self.add(about(request))

    def add(self, request: About) -> None:
        """A request came."""
        self._hear(request.arrival)
        self.outcomes.ask(request)
        self._note_queue(request.arrival, request.n)

    def end(self, finish: Finish) -> None:
        """An answer is over, as `StepOutput.finishes` says; those of unknown requests are ignored."""
        key = finish.id, finish.choice
        if not self.outcomes.is_open(*key):
            return
        row = self._by_key.pop(key, None)
        if row is not None:
            row.answer.finish = finish
            self._seat_early(row, finish.first_scheduled)
        if row is None or row.slot is None:
            self._note_queue(finish.finished, -1)
        else:
            self._stop_riding(row)
            self._over[row.slot] = _Over(row.stay, self.num_steps)
            self._leave(row, finish.finished, LEFT[finish.reason])
        self.outcomes.end(finish)

    # ------------------------------------------------------------ steps

    def on_step(self, plan: StepPlan, output: StepOutput, begun: float, finished: float) -> None:
        """A step was applied."""
        self._hear(begun)
        if plan.leaves:
            self._take_leaves(plan.leaves, output.finishes, begun)
        for join in plan.joins:
            self._join(join, begun)
        num_decodes = self._num_decoded(plan, output) if plan.chunks else len(output.keys)
        if num_decodes:
            self._decode(num_decodes, finished)
        for chunk in plan.chunks:
            self._compute(chunk.slot, chunk.start, chunk.count, begun, finished)
        for key in output.keys[num_decodes:] if plan.chunks else ():
            self._start(self._by_key[key], finished)
        self.num_steps += 1
        for finish in output.finishes:
            self.end(finish)
        self._count(plan, begun, finished)
        self.service.sample(finished)
        self.last = max(self.last, finished)

    def close(self, share: float = 1.0) -> None:
        """Nothing more comes: rows that are still in their slots stay open. Of what is thinned, keep this part."""
        for slot, over in self._over.items():
            self._release(slot, over)
        self._over.clear()
        for stay in self._open_stays.values():
            self._keep(stay)
        self._open_stays.clear()
        self.spans.shrink(max(MIN_SPANS, int(MAX_SPANS * share)))
        self.service.close(self.last, max(MIN_SPANS, int(MAX_POINTS * share)))

    def _hear(self, now: float) -> None:
        if self.origin is None:
            self.origin = now

    def _take_leaves(self, slots: Sequence[int], finishes: Sequence[Finish], begun: float) -> None:
        """Rows that are gone when a step begins: over since the step before, or preempted for this one."""
        for finish in finishes:
            row = self._by_key.get((finish.id, finish.choice))
            if row is not None and row.slot in slots and finish.finished <= begun:
                self.end(finish)
        for slot in slots:
            over = self._over.pop(slot, None)
            if over is not None:
                self._release(slot, over)
                continue
            row = self._rows.get(slot)
            if row is not None:
                self._stop_riding(row)
                self._leave(row, begun, Left.PREEMPTED)
                row.was_preempted = True
                self._note_queue(begun, 1)

    def _release(self, slot: int, over: _Over) -> None:
        """A sequence that was over kept its slot if there were steps since."""
        if over.stay is not None and self.num_steps > over.step:
            over.stay.held_until = self.last

    def _join(self, join: Join, begun: float) -> None:
        request = join.request
        key = request.id, join.choice
        known = self.outcomes.about(request.id)
        if known is None:
            known = about(request)
            self.add(known)
        row = self._by_key.get(key)
        if row is None:
            row = self._by_key[key] = Row(Answer(known, join.choice), self.outcomes.owner(known))
        self._note_queue(begun, -1)
        self._sit(row, join.slot, begun)
        if row.first is None and not row.was_preempted:
            row.first = begun, row.stay

    def _sit(self, row: Row, slot: int, now: float) -> None:
        """A row takes a slot."""
        self._rows[slot] = row
        row.slot, row.stay = slot, None
        if now - (self.origin or 0.0) >= self.window.end or self._budget.is_spent:
            self.stays_until = min(self.stays_until, now)
        if now < self.stays_until:
            self._budget.num_stays -= 1
            stay = Stay(slot, row.answer, now, row.was_preempted)
            row.stay = self._open_stays[slot] = stay

    def _seat_early(self, row: Row, scheduled: float | None) -> None:
        """A sequence takes its slot when it is scheduled; its row comes with its first chunk, perhaps steps later."""
        if row.first is None or scheduled is None or scheduled >= row.first[0]:
            return
        joined, stay = row.first
        self._note_queue(scheduled, -1)
        self._note_queue(joined, 1)
        if stay is not None:
            stay.joined = scheduled

    def _leave(self, row: Row, now: float, why: Left) -> None:
        """A row gives up its slot, or becomes a filler in it."""
        slot, row.slot = row.slot, None
        if slot is None:
            return
        del self._rows[slot]
        stay = self._open_stays.pop(slot, None)
        if stay is not None:
            stay.left, stay.why = now, why
            self._keep(stay)

    def _keep(self, stay: Stay) -> None:
        """Keep a stay that touches the window."""
        if stay.left is None or stay.left - (self.origin or 0.0) >= self.window.begin:
            self.stays.append(stay)
        else:
            self._budget.num_stays += 1
            self._budget.num_chunks += len(stay.chunks)

    def _note_queue(self, now: float, change: int) -> None:
        self.queue_times.append(now)
        self.queue_changes.append(change)

    # ------------------------------------------------------------ tokens

    def _num_decoded(self, plan: StepPlan, output: StepOutput) -> int:
        """How many of the new tokens came from decoding rows: those from chunks stand behind them."""
        sampled = {self._rows[chunk.slot].key for chunk in plan.chunks if chunk.samples and chunk.slot in self._rows}
        num_decodes = len(output.keys)
        while num_decodes and output.keys[num_decodes - 1] in sampled:
            num_decodes -= 1
        return num_decodes

    def _decode(self, num_rows: int, now: float) -> None:
        """Every row that rides gets a token."""
        itl, before = self.outcomes.itl, self._last_decode
        num_old = num_rows
        for row in self._fresh:
            if row.rides:
                num_old -= 1
                if row.last is not None:
                    itl.add(now - row.last)
        self._fresh.clear()
        if num_old > 0 and before is not None:
            itl.add(now - before, num_old)
        self._last_decode = now
        self.service.num_decode_steps += 1

    def _compute(self, slot: int, start: int, count: int, begun: float, finished: float) -> None:
        row = self._rows.get(slot)
        if row is None:
            return
        self.service.computed(row.owner, count)
        if row.stay is not None:
            self._budget.num_chunks -= 1
            row.stay.chunks.append((begun, finished, start, count))

    def _start(self, row: Row, now: float) -> None:
        """A chunk gave a token; from here on the row rides."""
        if row.was_preempted and row.last is not None:
            self.outcomes.itl.add(now - row.last)
        row.last, row.rides, row.rides_from = now, True, self.service.num_decode_steps
        self._fresh.append(row)
        self.service.start(row.owner, 1)
        if row.stay is not None:
            row.stay.decodes_from = now

    def _stop_riding(self, row: Row) -> None:
        if not row.rides:
            return
        row.rides = False
        if self.service.num_decode_steps > row.rides_from:
            row.last = self._last_decode
        self.service.stop(row.owner)

    def _count(self, plan: StepPlan, begun: float, finished: float) -> None:
        seconds = max(0.0, finished - begun)
        num_decodes, num_chunks, num_fillers = len(plan.decodes), len(plan.chunks), len(plan.fillers)
        pool = self.scheduler.kv.pool
        held = pool.num_held
        self.num_rows += num_decodes + num_chunks
        self.num_filler_rows += num_fillers
        self.busy_s += seconds
        self.spans.add(
            Span(
                begin=begun,
                end=finished,
                num_steps=1,
                busy_s=seconds,
                decode_row_s=num_decodes * seconds,
                chunk_row_s=num_chunks * seconds,
                filler_row_s=num_fillers * seconds,
                max_rows=num_decodes + num_chunks + num_fillers,
                num_tokens=num_decodes + num_fillers + plan.num_chunk_tokens,
                num_chunk_tokens=plan.num_chunk_tokens,
                held_blocks=held,
                max_held_blocks=held,
                kept_blocks=pool.num_kept,
            )
        )
