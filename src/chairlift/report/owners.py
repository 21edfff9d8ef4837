"""Who was served how much: tokens by who asked, over time and in the end.

A decoding row gets a token in every step that decodes. So the tokens of an owner grow by the number of its rows in each
of these steps, and only changes of that number have to be noted.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_OWNERS = 64
"""Names that are kept apart; clients may make up any number."""
OTHERS = "(others)"
MAX_POINTS = 512
"""Moments of the curves."""


@dataclass(slots=True)
class Owner:
    """Tokens of one who asks, as computed so far."""

    name: str
    num_chunk_tokens: int = 0
    num_output_tokens: int = 0
    """Up to `since`."""
    num_rows: int = 0
    """That decode now."""
    since: int = 0
    """Steps that decoded up to when the others were noted."""


class Names:
    """Numbers for the names of those who ask, in the order in which they came."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        """Past `MAX_OWNERS` names, the others share one."""
        number = self._numbers.get(name)
        if number is not None:
            return number
        if len(self.names) >= MAX_OWNERS:
            name = OTHERS
            if name in self._numbers:
                return self._numbers[name]
        number = self._numbers[name] = len(self.names)
        self.names.append(name)
        return number


class Service:
    """Service of every owner on one engine, in the tokens that fair scheduling would charge."""

    def __init__(self, names: Names, input_weight: float, output_weight: float) -> None:
        self.input_weight = input_weight
        self.output_weight = output_weight
        self.times: list[float] = []
        self.points: list[list[float]] = []
        """Service at each of these times, by owner; owners that came later are missing."""
        self.num_decode_steps = 0
        self._names = names
        self._owners: list[Owner] = []
        self._every = 1
        self._num_samples = 0

    def computed(self, owner: int, num_tokens: int) -> None:
        """A chunk of so many tokens was computed."""
        self._owner(owner).num_chunk_tokens += num_tokens

    def start(self, owner: int, num_tokens: int) -> None:
        """A row begins to decode, with so many tokens that it got just now."""
        one = self._settled(owner)
        one.num_output_tokens += num_tokens
        one.num_rows += 1

    def stop(self, owner: int) -> None:
        """A row decodes no longer."""
        self._settled(owner).num_rows -= 1

    def sample(self, now: float) -> None:
        """Note where the curves are; of many moments, every second one is dropped again and again."""
        self._num_samples += 1
        if self._num_samples % self._every:
            return
        if len(self.times) >= MAX_POINTS:
            self._halve()
            if self._num_samples % self._every:
                return
        self._note(now)

    def _halve(self) -> None:
        self.times, self.points = self.times[1::2], self.points[1::2]
        self._every *= 2

    def close(self, now: float, max_points: int = MAX_POINTS) -> None:
        """Nothing more comes: the last moment is one of the curves. Make do with so many before it."""
        while len(self.times) > max_points:
            self._halve()
        if self._num_samples and (not self.times or self.times[-1] < now):
            self._note(now)

    def _note(self, now: float) -> None:
        self.times.append(now)
        self.points.append(self.now())

    def now(self) -> list[float]:
        """Service so far, by owner."""
        return [
            self.input_weight * one.num_chunk_tokens
            + self.output_weight * (one.num_output_tokens + one.num_rows * (self.num_decode_steps - one.since))
            for one in self._owners
        ]

    def _owner(self, number: int) -> Owner:
        owners, names = self._owners, self._names.names
        while len(owners) <= number:
            owners.append(Owner(names[len(owners)], since=self.num_decode_steps))
        return owners[number]

    def _settled(self, number: int) -> Owner:
        one = self._owner(number)
        one.num_output_tokens += one.num_rows * (self.num_decode_steps - one.since)
        one.since = self.num_decode_steps
        return one
