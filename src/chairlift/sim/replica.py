"""One engine of the simulated fleet: a real scheduler, and a cost model in the place of a device."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from chairlift.core.engine import Recorder
from chairlift.core.errors import ChairliftError
from chairlift.core.quiet import advance, next_decision_at, quiet_rows, quiet_steps, step_once
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import Request, StepOutput, StepPlan, StepResult
from chairlift.sim.cost.changing import ChangingCost
from chairlift.sim.cost.model import CostModel, DecodeLine, LineModel
from chairlift.sim.keys import KeyMaker
from chairlift.sim.served import Ledger, Served
from chairlift.sim.workload import ANSWER_TOKEN

MIN_SKIPPED = 2
"""Fewer steps are taken one by one: looking whether they are quiet costs as much."""

MAX_AHEAD = 128
"""Most steps planned ahead where something may come between."""

StepListener = Callable[[StepPlan, StepOutput, float, float], None]
"""Hears of every step that ended: plan, output, when it began and ended."""


@dataclass(slots=True)
class Tally:
    """What a replica did, summed over its steps."""

    num_steps: int = 0
    idle_s: float = 0.0
    """Before its last step, from the start of the run."""
    last_end: float = 0.0
    """Of a step."""
    num_rows: int = 0
    """Rows that were computed for an answer: decodes and chunks."""
    num_filler_rows: int = 0
    num_decode_tokens: int = 0
    num_chunk_tokens: int = 0
    most_running: int = 0
    most_queued: int = 0
    """Requests that waited or ran, at most."""

    @property
    def busy_s(self) -> float:
        """Seconds in steps that ended."""
        return self.last_end - self.idle_s


@dataclass(slots=True)
class _Run:
    """Quiet steps in a row."""

    begins: list[float]
    ends: list[float]
    num_rows: int
    num_fillers: int
    num_taken: int = 0
    """Of them, applied to the scheduler."""


class Replica:
    """Takes requests and runs steps. Between `begin` and `finish` a step is under way; requests may come meanwhile."""

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        cost: CostModel,
        *,
        recorder: Recorder | None = None,
        on_step: StepListener | None = None,
        keys: KeyMaker | None = None,
    ) -> None:
        self.name = name
        self.scheduler = scheduler
        self.keys = keys if recorder is None and scheduler.takes_block_keys else None
        """Makes the keys of all blocks in its cache; None: prompts come as tokens, as all that is recorded does."""
        self.tally = Tally()
        self.ledger = Ledger()
        self.is_busy = False
        """Whether a step is under way."""
        self.num_queued = 0
        """Requests that wait or run."""
        self.num_waiting_tokens = 0
        """Prompt tokens of the requests that got no first token yet, as they were asked."""
        self._cost = cost
        self._recorder = recorder
        self._on_step = on_step
        self._served: dict[int, Served] = {}
        self._plan: StepPlan | None = None
        self._begun = 0.0
        self._last_s = 0.0
        self._ahead: _Run | None = None
        """Steps to come, begun by `look_ahead`."""
        self._line = cost if isinstance(cost, LineModel) else None
        self._changing = cost if isinstance(cost, ChangingCost) else None
        self._skips = recorder is None and on_step is None
        """Whether nobody wants to hear of every single step."""
        self._may_cross = scheduler.policy.scheduling_policy != "fair"
        """Whether it makes no difference if a request is queued before or after a quiet step in flight is applied."""

    def add(self, request: Request, served: Served) -> bool:
        """Queue a request. False if the scheduler refuses it, which is then noted in `served`."""
        try:
            self.scheduler.add(request)
        except ChairliftError as error:
            served.error = str(error)
            served.num_left = 0
            return False
        if self._recorder is not None:
            self._recorder.on_add(request)
        self._served[request.id] = served
        self.num_queued += 1
        self.num_waiting_tokens += len(request.prompt)
        self.tally.most_queued = max(self.tally.most_queued, self.num_queued)
        return True

    def close(self) -> None:
        """No more requests will come."""
        if self._recorder is not None:
            self._recorder.on_close()
        self.scheduler.close()

    def skip(self, now: float, bound: float, until: float) -> tuple[float, list[Served]]:
        """Take at once the steps from now on in which nothing is decided but that rows end for their length; gives when
        the last of them ends, and the requests that ended.

        They end before `until`. If requests may come at `bound`, the last of them may be under way then: the replica is
        busy to its end. What all of this leaves behind is what one step after the other would.
        """
        ended: list[Served] = []
        if bound - now < MIN_SKIPPED * self._last_s:
            return now, ended
        least = min(bound, until)
        crossed, before = (bound, until) if self._may_cross else (math.inf, least)
        while True:
            run = self._quiet_run(now, crossed, before)
            if run is not None:
                self._take(run, len(run.begins))
                now = run.ends[-1]
                self.is_busy = now >= bound
            # Who ends makes room: nobody may come meanwhile.
            end = None if self.is_busy else self._step_before(now, least, ended)
            if end is None:
                return now, ended
            now = end

    def _step_before(self, now: float, bound: float, ended: list[Served]) -> float | None:
        """Take one step from now on, if it ends before `bound`, and decides nothing but that rows end, who are added to
        `ended`; gives when it ends."""
        if (coming := self._coming()) is None:
            return None
        line, num_rows, num_fillers, num_context_tokens = coming
        end = now + line.seconds(num_context_tokens)
        if not num_rows or end >= self._before_decision(bound):
            return None
        output = step_once(self.scheduler, ANSWER_TOKEN, now, end)
        if output is None:
            return None
        self._note_skipped([now], [end], num_rows, num_fillers)
        if output.finishes:
            self.ledger.endings(output)
            ended += self._take_ended(output)
        return end

    def look_ahead(self, now: float, bound: float, until: float) -> float | None:
        """As `skip`, where requests may come at any time: `cut` then ends the run of steps at the one under way.

        Gives when the run ends, to which the replica is busy; None if there is none.
        """
        if not self._may_cross:
            return None
        self._ahead = self._quiet_run(now, bound, until, MAX_AHEAD)
        if self._ahead is None:
            return None
        self.is_busy = True
        return self._ahead.ends[-1]

    def cut(self, now: float) -> float | None:
        """A request comes: when the step under way ends, if that is one of a run, which is over with it."""
        run = self._ahead
        if run is None:
            return None
        self.catch_up(now)
        if not run.num_taken:
            self._take(run, 1)
        self._ahead = None
        return run.ends[run.num_taken - 1]

    def catch_up(self, now: float) -> None:
        """Make what can be seen of the scheduler and its cache that of this moment. Changes nothing that is to come."""
        if self._ahead is not None:
            self._take(self._ahead, bisect_left(self._ahead.begins, now))

    def _quiet_run(self, now: float, bound: float, until: float, most: int = sys.maxsize) -> _Run | None:
        """Steps from now on in which nothing is decided, at most to the one that is under way at `bound`."""
        if not self._skips or (most := min(quiet_steps(self.scheduler, ANSWER_TOKEN), most)) < MIN_SKIPPED:
            return None
        if (coming := self._coming()) is None:
            return None
        line, num_rows, num_fillers, num_context_tokens = coming
        until = self._before_decision(until)
        ends = line.ends(now, num_context_tokens, num_rows, most, bound=bound, until=until)
        return _Run([now, *ends[:-1]], ends, num_rows, num_fillers) if ends else None

    def _coming(self) -> tuple[DecodeLine, int, int, int] | None:
        """Of quiet steps to come: their line, decoding rows, fillers, and context tokens of the first. None if they lie
        on none."""
        if not self._skips or self._line is None:
            return None
        num_rows, num_fillers, num_context_tokens, num_shared_tokens = quiet_rows(self.scheduler)
        num_all = num_rows + num_fillers
        if self._changing is not None and not self._changing.is_steady(num_all):
            return None
        return self._line.decode_line(num_all, num_shared_tokens), num_rows, num_fillers, num_context_tokens

    def _before_decision(self, until: float) -> float:
        """Or before then, if something is decided for its own sake before."""
        decision = next_decision_at(self.scheduler)
        return until if decision is None or decision > until else decision

    def _take(self, run: _Run, num_steps: int) -> None:
        """Apply the first so many steps of a run, those that are not applied yet."""
        begins, ends = run.begins[run.num_taken : num_steps], run.ends[run.num_taken : num_steps]
        if begins:
            run.num_taken = num_steps
            advance(self.scheduler, ANSWER_TOKEN, begins)
            self._note_skipped(begins, ends, run.num_rows, run.num_fillers)

    def _note_skipped(self, begins: list[float], ends: list[float], num_rows: int, num_fillers: int) -> None:
        self.ledger.decodes(num_rows, ends)
        tally, num_steps = self.tally, len(begins)
        tally.num_steps += num_steps
        if begins[0] != tally.last_end:
            tally.idle_s += begins[0] - tally.last_end
        tally.last_end = ends[-1]
        tally.num_rows += num_steps * num_rows
        tally.num_filler_rows += num_steps * num_fillers
        tally.num_decode_tokens += num_steps * num_rows
        tally.most_running = max(tally.most_running, num_rows)

    def begin(self, now: float) -> float | None:
        """Plan a step and start it: when it will be over. None if there is nothing to compute.

        Raises:
            ValueError: the cost model gave no length of time.
        """
        plan = self.scheduler.schedule(now)
        if self._recorder is not None:
            self._recorder.on_begin(plan, now)
        if plan is None:
            return None
        cost_s = self._cost(plan)
        if not 0.0 <= cost_s < math.inf:
            raise ValueError(f"the cost model says that a step takes {cost_s} s")
        self._plan, self._begun, self._last_s, self.is_busy = plan, now, cost_s, True
        return now + cost_s

    def finish(self, now: float) -> list[Served]:
        """Apply the step that is over; gives the requests that ended with it. One that was skipped is applied."""
        plan = self._plan
        self._plan, self.is_busy = None, False
        if plan is None:
            if self._ahead is not None:
                self._take(self._ahead, len(self._ahead.begins))
                self._ahead = None
            return []
        num_decodes, chunks = len(plan.decodes), plan.chunks
        num_sampled = num_decodes + (sum([chunk.samples for chunk in chunks]) if chunks else 0)
        result = StepResult([ANSWER_TOKEN] * num_sampled)
        output = self.scheduler.commit(result, now)
        if self._recorder is not None:
            self._recorder.on_finish(plan, result, None, output, now)
        tally = self.tally
        tally.num_steps += 1
        if self._begun != tally.last_end:
            tally.idle_s += self._begun - tally.last_end
        tally.last_end = now
        tally.num_rows += num_decodes + len(chunks)
        tally.num_filler_rows += len(plan.fillers)
        tally.num_decode_tokens += num_decodes
        tally.num_chunk_tokens += plan.num_chunk_tokens
        if num_decodes + len(chunks) > tally.most_running:
            tally.most_running = num_decodes + len(chunks)
        self.ledger.step(plan, output, self._served, now)
        if num_sampled > num_decodes:
            self._note_first_tokens(output, num_decodes, now)
        if self._on_step is not None:
            self._on_step(plan, output, self._begun, now)
        return self._take_ended(output) if output.finishes else []

    def flush(self) -> list[Served]:
        """Requests that ended outside a step."""
        output = self.scheduler.take_ended()
        self.ledger.endings(output)
        return self._take_ended(output)

    def wake_at(self) -> float | None:
        """When `begin` may have something to do again although nothing happens; None: never."""
        return self.scheduler.wake_at()

    def _note_first_tokens(self, output: StepOutput, num_decodes: int, now: float) -> None:
        for request_id, choice in output.keys[num_decodes:]:
            served = self._served[request_id]
            if choice == 0 and served.first_token == now:
                self.num_waiting_tokens -= served.asked.prompt.num_tokens

    def _take_ended(self, output: StepOutput) -> list[Served]:
        ended = []
        for finish in output.finishes:
            served = self._served[finish.id]
            served.finishes.append(finish)
            served.num_left -= 1
            if served.num_left:
                continue
            del self._served[finish.id]
            self.num_queued -= 1
            if served.first_token is None:
                self.num_waiting_tokens -= served.asked.prompt.num_tokens
            ended.append(served)
        return ended
