"""When waiting sequences may join the running set: one of the scheduler's two axes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from chairlift.core.policy import DYNAMIC_WAIT_S, Policy


class Batching(Protocol):
    @property
    def gathers(self) -> bool:
        """Whether those who wait join together: once a batch of them is full or due, and none is being computed."""
        ...

    @property
    def holds(self) -> bool:
        """Whether a batch runs to the end of its longest member: what ended stays as a filler, and nobody joins."""
        ...

    def opens_at(self, arrivals: Iterable[float]) -> float | None:
        """When a batch that is not full opens whose members arrived then, one at least; None: not by waiting."""
        ...

    def room(self, num_running: int, max_num_seqs: int, num_waiting: int, is_due: bool) -> int:
        """How many sequences may join in this step. `is_due`: nothing more can come, or `opens_at` has passed."""
        ...


class Continuous:
    """Any free slot, every step.

    Source: iteration-level scheduling, Yu et al. 2022 (Orca), OSDI.
    """

    __slots__ = ()
    gathers = False
    holds = False

    def opens_at(self, arrivals: Iterable[float]) -> float | None:
        return None

    def room(self, num_running: int, max_num_seqs: int, num_waiting: int, is_due: bool) -> int:
        return max(0, max_num_seqs - num_running)


class Gathered:
    """A batch at a time: static without `wait_s`, dynamic with it.

    Nobody joins before the last batch is over, and then only when the next one is full or due. A batch of single passes
    is over after one step, and there is nothing to hold.
    """

    __slots__ = ("_wait_s", "holds")
    gathers = True

    def __init__(self, wait_s: float | None, *, holds: bool) -> None:
        self._wait_s = wait_s
        self.holds = holds

    def opens_at(self, arrivals: Iterable[float]) -> float | None:
        # Whoever came first has waited longest, and that may not be the one who is next.
        return None if self._wait_s is None else min(arrivals) + self._wait_s

    def room(self, num_running: int, max_num_seqs: int, num_waiting: int, is_due: bool) -> int:
        return max_num_seqs if num_running == 0 and (num_waiting >= max_num_seqs or is_due) else 0


def make_batching(policy: Policy) -> Batching:
    """The batching that a policy names."""
    if policy.batching == "continuous":
        return Continuous()
    wait_s = policy.max_batch_wait_s
    if policy.batching == "dynamic" and wait_s is None:
        wait_s = DYNAMIC_WAIT_S
    return Gathered(wait_s, holds=not policy.single_pass)
