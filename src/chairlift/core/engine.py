"""The engine: a scheduler, an executor and the loop's three verbs, with time as an argument.

    begin(now)    plan a step and hand it to the executor; False if there is nothing to compute
    wait()        block until the executor is done
    finish(now)   apply the result and say what every caller gets

A driver owns waiting and the clock: `worker/loop.py` on the wall clock, a simulator on a virtual one. Between
`begin` and `finish` requests may be added and aborted; what they change takes effect at the next `begin`.
"""

from __future__ import annotations

from typing import Protocol

from chairlift.core.types import Request, StepOutput, StepPlan, StepResult


class Pending(Protocol):
    """A step on its way."""

    def result(self) -> StepResult:
        """Wait for the step. May be called once.

        Raises:
            Exception: the step failed as a whole; every row in it is lost, rows outside it are not.
        """
        ...


class Executor(Protocol):
    """Computes steps. One step at a time: `submit` is called again only after the last result was taken."""

    def submit(self, plan: StepPlan) -> Pending: ...


class StopMatcher(Protocol):
    """Watches the text of one sequence for its stop strings."""

    def push(self, token: int) -> str | None:
        """The stop string that this token completed, or None."""
        ...


class StopMatcherFactory(Protocol):
    def __call__(self, request: Request) -> StopMatcher | None:
        """A fresh matcher for a sequence of this request; None if it has no stop strings."""
        ...


class Observer(Protocol):
    """Hears of every step after it was applied: metrics and journals."""

    def on_step(self, plan: StepPlan, output: StepOutput, begun: float, finished: float) -> None: ...
