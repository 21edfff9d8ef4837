"""When waiting sequences may join the running set: one of the scheduler's two axes."""

from __future__ import annotations

from typing import Protocol


class Batching(Protocol):
    def room(self, num_running: int, max_num_seqs: int) -> int:
        """How many sequences may join in this step."""
        ...


class Continuous:
    """Any free slot, every step.

    Source: iteration-level scheduling, Yu et al. 2022 (Orca), OSDI.
    """

    __slots__ = ()

    def room(self, num_running: int, max_num_seqs: int) -> int:
        return max(0, max_num_seqs - num_running)
