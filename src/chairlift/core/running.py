"""The running set: who has a slot, who prefills, who decodes."""

from __future__ import annotations

from chairlift.core.sequence import Sequence, State


class RunningSet:
    """Slots 0 .. max_num_seqs - 1, reused last in, first out, and the sequences in them.

    What is derived from the decoding rows (`slots`, `keys`, `num_context_tokens`) is brought up to date by `refresh`,
    once a step. The lists are replaced when the rows change and never altered, so plans and outputs may share them.
    """

    __slots__ = (
        "_changed",
        "decoding",
        "free_slots",
        "keys",
        "leaves",
        "max_num_seqs",
        "num_context_tokens",
        "prefilling",
        "slots",
    )

    def __init__(self, max_num_seqs: int) -> None:
        self.max_num_seqs = max_num_seqs
        self.free_slots = list(range(max_num_seqs - 1, -1, -1))
        self.prefilling: list[Sequence] = []
        """In order, after `refresh`."""
        self.decoding: list[Sequence] = []
        self.leaves: list[int] = []
        """Slots whose rows the executor must drop with the next plan."""
        self.slots: list[int] = []
        """Slots of `decoding`."""
        self.keys: list[tuple[int, int]] = []
        """(id, choice) of `decoding`."""
        self.num_context_tokens = 0
        """Computed tokens of `decoding`, summed."""
        self._changed = False

    @property
    def num_taken(self) -> int:
        return self.max_num_seqs - len(self.free_slots)

    @property
    def is_empty(self) -> bool:
        return not self.prefilling and not self.decoding

    def take_slot(self, sequence: Sequence, state: State) -> None:
        """Give a waiting sequence a slot: to prefill, or to wait for the prompt it shares (`State.FORKING`)."""
        sequence.slot = self.free_slots.pop()
        sequence.state = state
        if state is State.PREFILLING:
            self.prefilling.append(sequence)

    def start_prefill(self, sequence: Sequence) -> None:
        sequence.state = State.PREFILLING
        self.prefilling.append(sequence)

    def start_decode(self, sequence: Sequence) -> None:
        sequence.state = State.DECODING
        self.decoding.append(sequence)
        self._changed = True

    def vacate(self, sequence: Sequence, state: State) -> None:
        """Take a sequence out; its slot is free, and the executor hears of it if it knew the row."""
        if sequence.state is State.DECODING:
            self._changed = True
        if sequence.joined:
            self.leaves.append(sequence.slot)
            sequence.joined = False
        if sequence.slot >= 0:
            self.free_slots.append(sequence.slot)
            sequence.slot = -1
        sequence.state = state

    def sort_prefilling(self) -> None:
        """Drop those that left and put the rest in order."""
        self.prefilling = [s for s in self.prefilling if s.state is State.PREFILLING]
        self.prefilling.sort(key=in_order)

    def refresh_decoding(self) -> None:
        """Once a step: every row that stayed has one more token, or everything derived is made anew."""
        if not self._changed:
            self.num_context_tokens += len(self.decoding)
            return
        self._changed = False
        self.decoding = [s for s in self.decoding if s.state is State.DECODING]
        self.slots = [s.slot for s in self.decoding]
        self.keys = [s.key for s in self.decoding]
        self.num_context_tokens = sum(len(s.tokens) for s in self.decoding) - len(self.decoding)


def in_order(sequence: Sequence) -> tuple[int, int, int]:
    """Sort key: the place of a sequence in the order of service."""
    return sequence.order
