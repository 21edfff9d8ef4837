"""The engine: a scheduler, an executor and the loop's three verbs, with time as an argument.

    begin(now)    plan a step and hand it to the executor; False if there is nothing to compute
    wait()        block until the executor is done
    finish(now)   apply the result and say what every caller gets

A driver owns waiting and the clock: `worker/loop.py` on the wall clock, a simulator on a virtual one. Between
`begin` and `finish` requests may be added and aborted; what they change takes effect at the next `begin`.
"""

from __future__ import annotations

from typing import Literal, Protocol

from chairlift.core.look import Look
from chairlift.core.scheduler import Scheduler, StopMatcherFactory
from chairlift.core.types import EngineStats, LimitChange, Request, StepOutput, StepPlan, StepResult


class Pending(Protocol):
    """A step on its way."""

    def result(self) -> StepResult:
        """Wait for the step. May be called once.

        Raises:
            Exception: the step failed as a whole; every row in it is lost, rows outside it are not.
        """
        ...


class Executor(Protocol):
    """Computes steps, one at a time: `submit` is called again only after the last result was taken."""

    def submit(self, plan: StepPlan) -> Pending:
        """Apply what the plan changes, then start computing.

        Raises:
            Exception: as for `Pending.result`. Leaves, joins and blocks of the plan were applied all the same.
        """
        ...


class Observer(Protocol):
    """Hears of every step after it was applied: metrics and journals."""

    def on_step(self, plan: StepPlan, output: StepOutput, begun: float, finished: float) -> None: ...


class Recorder(Protocol):
    """Hears of everything that went into the scheduler, in order, and of what it planned. Refused inputs are none."""

    def on_add(self, request: Request) -> None: ...

    def on_abort(self, request_id: int, now: float) -> None: ...

    def on_limits(self, change: LimitChange) -> None: ...

    def on_close(self) -> None: ...

    def on_begin(self, plan: StepPlan | None, now: float) -> None:
        """After `schedule(now)`: a step without work is an input as well, since time passed."""
        ...

    def on_finish(
        self, plan: StepPlan, result: StepResult | None, failure: str | None, output: StepOutput, now: float
    ) -> None:
        """After `commit`, or after `fail` if there is no result."""
        ...

    def on_broken(self, during: Literal["begin", "finish"], result: StepResult | None, error: str, now: float) -> None:
        """Instead of `on_begin` or `on_finish`: the scheduler raised, which is a defect. Nothing comes after it."""
        ...


class Engine:
    """One scheduler on one executor. Not thread-safe: its driver calls it from one thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        stop_matchers: StopMatcherFactory | None = None,
        observer: Observer | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._executor = executor
        self._stop_matchers = stop_matchers
        self._observer = observer
        self._recorder = recorder
        self._plan: StepPlan | None = None
        self._pending: Pending | None = None
        self._result: StepResult | None = None
        self._failure: str | None = None
        self._begun = 0.0

    def add(self, request: Request) -> None:
        """Queue a request; see `Scheduler.add` for what is refused."""
        self.scheduler.add(request, self._stop_matchers)
        if self._recorder is not None:
            self._recorder.on_add(request)

    def abort(self, request_id: int, now: float) -> None:
        """Nobody wants this request any longer; unknown ids are ignored."""
        if self._recorder is not None:
            self._recorder.on_abort(request_id, now)
        self.scheduler.abort(request_id, now)

    def set_limits(self, change: LimitChange) -> None:
        """Change limits from the next step on; see `Scheduler.set_limits` for what is refused."""
        self.scheduler.set_limits(change)
        if self._recorder is not None:
            self._recorder.on_limits(change)

    def close(self) -> None:
        """No more requests will come."""
        if self._recorder is not None:
            self._recorder.on_close()
        self.scheduler.close()

    def wake_at(self) -> float | None:
        """When to call `begin` again after it had nothing to compute, if nothing else happens; None: no need to."""
        return self.scheduler.wake_at()

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def stats(self, num_step_tokens: int = 0, num_step_rows: int = 0, step_s: float = 0.0) -> EngineStats:
        """Counts of this moment, with those of the last step as its driver knows them."""
        return self.scheduler.stats(num_step_tokens, num_step_rows, step_s)

    def look(self) -> Look:
        """Who runs and who waits."""
        return self.scheduler.look()

    @property
    def num_step_tokens(self) -> int:
        """Tokens that the step begun last computes; 0 when it is finished."""
        return 0 if self._plan is None else self._plan.num_tokens

    @property
    def num_step_rows(self) -> int:
        """Rows that sample in the step begun last; 0 when it is finished."""
        return 0 if self._plan is None else self._plan.num_samples

    def begin(self, now: float) -> bool:
        """Plan a step and start it. False if there is nothing to compute: `flush` then has what ended."""
        try:
            plan = self.scheduler.schedule(now)
        except Exception as error:
            self._report("begin", None, error, now)
            raise
        if self._recorder is not None:
            self._recorder.on_begin(plan, now)
        if plan is None:
            return False
        self._plan, self._begun = plan, now
        try:
            self._pending = self._executor.submit(plan)
        except Exception as error:
            self._failure = _describe(error)
        return True

    def wait(self) -> None:
        """Block until the step begun last is computed."""
        if self._pending is None:
            return
        try:
            self._result = self._pending.result()
        except Exception as error:
            self._failure = _describe(error)
        self._pending = None

    def finish(self, now: float) -> StepOutput:
        """Apply the step begun last. A step that failed as a whole ends its rows; the engine goes on.

        Raises:
            RuntimeError: no step was begun.
        """
        self.wait()
        plan, result, failure = self._plan, self._result, self._failure
        self._plan = self._result = self._failure = None
        if plan is None:
            raise RuntimeError("no step was begun")
        if result is not None and (failure := self.scheduler.check_result(plan, result)) is not None:
            result = None
        try:
            if result is None:
                output = self.scheduler.fail(failure or "the step gave no result", now)
            else:
                output = self.scheduler.commit(result, now)
        except Exception as error:
            self._report("finish", result, error, now)
            raise
        if self._recorder is not None:
            self._recorder.on_finish(plan, result, failure, output, now)
        if self._observer is not None:
            self._observer.on_step(plan, output, self._begun, now)
        return output

    def _report(
        self, during: Literal["begin", "finish"], result: StepResult | None, error: Exception, now: float
    ) -> None:
        """A defect: whoever records can replay it."""
        if self._recorder is not None:
            self._recorder.on_broken(during, result, f"{type(error).__name__}: {error}", now)

    def flush(self, now: float) -> StepOutput:
        """What ended outside a step since the last output."""
        return self.scheduler.take_ended()

    def step(self, now: float) -> StepOutput | None:
        """A whole step at one point in time, for drivers that do not measure; None if there is nothing to do."""
        if self.begin(now):
            return self.finish(now)
        return self.flush(now) if self.has_work else None


def _describe(error: Exception) -> str:
    """One line without addresses or paths: it may reach a client."""
    return f"the step failed in the executor ({type(error).__name__})"
