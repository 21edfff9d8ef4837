"""Why the queue does not move, kept so that any one request's wait can be told without touching those who wait.

clocks    one for each reason; the clock of what blocks the head of the queue runs, all others stand still
a wait    the clocks when a request joins or gives up, less the clocks when it arrived
"""

from __future__ import annotations

from chairlift.core.sequence import Sequence
from chairlift.core.types import WaitReason

REASONS = tuple(WaitReason)


class WaitClocks:
    """Seconds by reason, as of the last `settle`."""

    __slots__ = ("_seconds", "_settled", "_since", "reason")

    def __init__(self) -> None:
        self.reason = WaitReason.STEP
        """What blocks the head of the queue now; `STEP` if nothing does. Changed by `turn`."""
        self._since: float | None = None
        """When that began to be so, as far as it is not in `_seconds`."""
        self._settled = 0.0
        self._seconds = [0.0] * len(REASONS)

    @property
    def seconds(self) -> dict[WaitReason, float]:
        """Since the start, by what blocked the head; without `STEP`, which blocks nobody in particular."""
        return {r: s for r, s in zip(REASONS, self._now(), strict=True) if s and r is not WaitReason.STEP}

    def settle(self, now: float) -> None:
        """The time since the last call belongs to the reason that held meanwhile.

        If the driver's clock went back, what it shows a second time is not counted a second time.
        """
        if self._since is None:
            self._since = self._settled = now
        elif now > self._settled:
            self._settled = now

    def turn(self, reason: WaitReason) -> None:
        """From the last `settle` on, this is what blocks the head of the queue."""
        if reason is not self.reason:
            self._seconds = self._now()
            if self._since is not None:
                self._since = self._settled
            self.reason = reason

    def arrive(self, sequence: Sequence) -> None:
        """Remember the clocks as they stood when its request arrived."""
        seconds = self._now()
        passed = 0.0 if self._since is None else sequence.request.arrival - self._settled
        # What passed between its arrival and the last settling it spent on its way here, which no clock counted.
        seconds[REASONS.index(self.reason) if passed > 0 else 0] += passed
        sequence.waits_from = tuple(seconds)

    def stop(self, sequence: Sequence) -> None:
        """Its first wait is over, as of the last `settle`: it joins, or ends without."""
        pairs = zip(REASONS, self._now(), sequence.waits_from, strict=True)
        sequence.waited = tuple([(reason, now - then) for reason, now, then in pairs if now > then])

    def _now(self) -> list[float]:
        """What the clocks show, in the order of `REASONS`."""
        seconds = list(self._seconds)
        if self._since is not None:
            seconds[REASONS.index(self.reason)] += self._settled - self._since
        return seconds
