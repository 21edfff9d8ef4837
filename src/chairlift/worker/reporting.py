"""An executor whose failures are seen where the engine runs: whoever waits hears only that there was one."""

from __future__ import annotations

import traceback

from chairlift.core.engine import Executor, Pending
from chairlift.core.types import StepPlan, StepResult


class Reporting:
    """An executor whose failures leave their traceback on standard error: callers are only told that there was one."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, plan: StepPlan) -> Pending:
        try:
            return _ReportingPending(self._executor.submit(plan))
        except Exception:
            traceback.print_exc()
            raise


class _ReportingPending:
    def __init__(self, pending: Pending) -> None:
        self._pending = pending

    def result(self) -> StepResult:
        try:
            return self._pending.result()
        except Exception:
            traceback.print_exc()
            raise
