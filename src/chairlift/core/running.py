"""The running set: who has a slot, who prefills, who decodes."""

from __future__ import annotations

from chairlift.core.sequence import DECODING, PREFILLING, Order, Sequence, State

LOWEST_LEVEL = -(1 << 63)
"""Below every priority."""
FEW_ROWS = 8
"""So many that left are taken out one by one; for more of them all rows are looked through."""


class RunningSet:
    """Slots 0 .. max_num_seqs - 1, reused last in, first out, and the sequences in them.

    What is derived from the decoding rows (`slots`, `keys`) is brought up to date by `refresh_decoding`, once
    a step. These lists are replaced when the rows change and never altered, so plans and outputs may share them.
    """

    __slots__ = (
        "_changed",
        "_gone",
        "decoding",
        "fillers",
        "free_slots",
        "held",
        "keys",
        "leaves",
        "max_num_seqs",
        "num_by_level",
        "num_context_tokens",
        "num_filler_tokens",
        "num_left",
        "num_watched",
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
        self.num_by_level: dict[int, int] = {}
        """How many prefill or decode at each level that has any."""
        self.num_context_tokens = 0
        """Computed tokens of `decoding`, summed."""
        self.num_watched = 0
        """Of `decoding`, those whose every token is looked at: some tokens end them, or their text is watched."""
        self.num_left = 0
        """Tokens until the first of `decoding` comes to its length."""
        self.held: list[Sequence] = []
        """Over, but in their slots until the batch is."""
        self.fillers: list[int] = []
        """Slots of `held`."""
        self.num_filler_tokens = 0
        """Computed tokens of `held`, summed."""
        self._changed = False
        self._gone: list[Sequence] = []
        """Of `decoding`, those that left since the last `refresh_decoding`."""

    @property
    def num_taken(self) -> int:
        return self.max_num_seqs - len(self.free_slots)

    @property
    def num_live(self) -> int:
        """Sequences in slots that are not over."""
        return self.num_taken - len(self.held)

    def take_slot(self, sequence: Sequence, state: State) -> None:
        """Give a waiting sequence a slot: to prefill, or to wait for the prompt it shares (`State.FORKING`)."""
        sequence.slot = self.free_slots.pop()
        sequence.state = state
        if state is PREFILLING:
            self._enter(sequence)

    def start_prefill(self, sequence: Sequence) -> None:
        sequence.state = PREFILLING
        self._enter(sequence)

    def _enter(self, sequence: Sequence) -> None:
        self.prefilling.append(sequence)
        level = sequence.order[0]
        self.num_by_level[level] = self.num_by_level.get(level, 0) + 1

    def _leave(self, sequence: Sequence) -> None:
        """Its level stands, since only those who wait age."""
        level = sequence.order[0]
        self.num_by_level[level] -= 1
        if not self.num_by_level[level]:
            del self.num_by_level[level]

    def start_decode(self, sequence: Sequence) -> None:
        sequence.state = DECODING
        self.decoding.append(sequence)
        self._changed = True

    def vacate(self, sequence: Sequence, state: State) -> None:
        """Take a sequence out; its slot is free, and the executor hears of it if it knew the row."""
        if sequence.state in (PREFILLING, DECODING):
            self._leave(sequence)
        if sequence.state is DECODING:
            self._changed = True
            self._gone.append(sequence)
        if sequence.joined:
            self.leaves.append(sequence.slot)
            sequence.joined = False
        if sequence.slot >= 0:
            self.free_slots.append(sequence.slot)
            sequence.slot = -1
        sequence.state = state

    @property
    def worst_level(self) -> int:
        """The highest level of those who run; below all levels if nobody does."""
        return max(self.num_by_level, default=LOWEST_LEVEL)

    def live(self) -> list[Sequence]:
        """Those who prefill or decode."""
        return [s for s in (*self.prefilling, *self.decoding) if s.state in (PREFILLING, DECODING)]

    def hold(self, sequence: Sequence) -> None:
        """A decoding sequence is over, but stays a row."""
        self._leave(sequence)
        self._changed = True
        self._gone.append(sequence)
        sequence.state = State.HELD
        self.held.append(sequence)
        self.fillers = [*self.fillers, sequence.slot]
        self.num_filler_tokens += len(sequence.tokens) - 1

    def take_held(self) -> list[Sequence]:
        """The batch is over: those it held, which are no longer."""
        held, self.held = self.held, []
        self.fillers, self.num_filler_tokens = [], 0
        return held

    def sort_prefilling(self) -> None:
        """Drop those that left and put the rest in order."""
        if self.prefilling:
            self.prefilling = [s for s in self.prefilling if s.state is PREFILLING]
            self.prefilling.sort(key=in_order)

    def advance(self, num_rows: int) -> None:
        """A step is over in which so many decoding rows got a token; those that end with it follow."""
        self.num_context_tokens += num_rows
        self.num_left -= 1

    def refresh_decoding(self) -> None:
        """Once a step: if rows came or went, everything derived from them is made anew."""
        if not self._changed:
            return
        self._changed = False
        gone, self._gone = self._gone, []
        if len(gone) <= FEW_ROWS:
            self._replace_few(gone)
            return
        self.decoding = rows = [s for s in self.decoding if s.state is DECODING]
        self.slots = [s.slot for s in rows]
        self.keys = [s.key for s in rows]
        self.num_context_tokens = sum([len(s.tokens) for s in rows]) - len(rows)
        self.num_watched = len([s for s in rows if _is_watched(s)])
        self.num_left = _num_left(rows)

    def _replace_few(self, gone: list[Sequence]) -> None:
        """The same as looking at every row, where few left: what was known of the others still holds."""
        rows, slots, keys = [*self.decoding], [*self.slots], [*self.keys]
        for sequence in gone:
            place = rows.index(sequence)
            del rows[place]
            if place < len(slots):
                del slots[place], keys[place]
                self.num_context_tokens -= len(sequence.tokens) - 1
                self.num_watched -= _is_watched(sequence)
        came = rows[len(slots) :]
        for sequence in came:
            slots.append(sequence.slot)
            keys.append(sequence.key)
            self.num_context_tokens += len(sequence.tokens) - 1
            self.num_watched += _is_watched(sequence)
        self.num_left = _num_left(rows) if gone or len(came) == len(rows) else min(self.num_left, _num_left(came))
        self.decoding, self.slots, self.keys = rows, slots, keys


def _is_watched(sequence: Sequence) -> bool:
    return sequence.matcher is not None or bool(sequence.ends)


def _num_left(rows: list[Sequence]) -> int:
    return min([s.end - len(s.tokens) for s in rows], default=0)


def in_order(sequence: Sequence) -> Order:
    """Sort key: the place of a sequence among those that run."""
    return sequence.rank
