"""What single principals may have: caps of their own, and so many requests and tokens a minute.

A minute's allowance is a bucket: full at first, taken from by what enters, and filling again all the time. What an
answer will cost is known when it has ended, so tokens may be taken that are not there: then nothing enters until the
debt is filled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chairlift.core.errors import InvalidOption

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLimits:
    """Of one principal. None: the cap that holds for everybody, and no limit on what a minute may take.

    A request counts once in `max_reqs_per_minute`, however many answers it asks for; `max_tokens_per_minute` counts
    prompt tokens, cached or not, and generated ones.

    Raises:
        InvalidOption: a limit below 0, or one that would let nothing in.
    """

    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    max_num_reqs: int | None = None
    max_reqs_per_minute: int | None = None
    max_tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            least = 0 if name.startswith("max_num_queued") else 1
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise InvalidOption(f"{name} must be a whole number of at least {least}")

    def caps(self) -> dict[str, int]:
        """Those that take the place of a cap for everybody, by its name in `AdmissionLimits`."""
        caps = {
            "max_num_queued_reqs_per_principal": self.max_num_queued_reqs,
            "max_num_queued_tokens_per_principal": self.max_num_queued_tokens,
            "max_num_reqs_per_principal": self.max_num_reqs,
        }
        return {name: cap for name, cap in caps.items() if cap is not None}


class Bucket:
    """An allowance of `per_minute` units; holds as much as a minute gives."""

    __slots__ = ("_filled_at", "_level", "size")

    def __init__(self, per_minute: int, now: float) -> None:
        self.size = per_minute
        self._level = float(per_minute)
        self._filled_at = now

    def wait_s(self, amount: int, now: float) -> float:
        """Seconds until `amount` can be taken; more than the bucket holds can be taken when it is full."""
        self._fill(now)
        lacking = min(amount, self.size) - self._level
        return max(0.0, lacking * MINUTE_S / self.size)

    def take(self, amount: int, now: float) -> None:
        """Take `amount`, there or not."""
        self._fill(now)
        self.correct(amount)

    def correct(self, amount: int) -> None:
        """So much more was taken than was said a moment ago; less than 0: so much less."""
        self._level -= amount

    def _fill(self, now: float) -> None:
        if now > self._filled_at:
            self._level = min(float(self.size), self._level + (now - self._filled_at) * self.size / MINUTE_S)
            self._filled_at = now


class Allowances:
    """The buckets of all principals that have any. Bounded by who has limits, not by who asks."""

    def __init__(self) -> None:
        self._limits: Mapping[str, OwnLimits] = {}
        self._requests: dict[str, Bucket] = {}
        self._tokens: dict[str, Bucket] = {}

    def set_limits(self, limits: Mapping[str, OwnLimits]) -> None:
        """Limits from now on. A bucket whose size stays keeps what is in it."""
        self._limits = limits
        for buckets, name in ((self._requests, "max_reqs_per_minute"), (self._tokens, "max_tokens_per_minute")):
            for principal, bucket in list(buckets.items()):
                if getattr(limits.get(principal), name, None) != bucket.size:
                    del buckets[principal]

    def wait_s(self, principal: str, num_tokens: int, now: float) -> tuple[float, float]:
        """Seconds until the requests, and until the tokens of `principal` allow one more request of that size."""
        limits = self._limits.get(principal)
        if limits is None:
            return 0.0, 0.0
        requests = _bucket(self._requests, principal, limits.max_reqs_per_minute, now)
        tokens = _bucket(self._tokens, principal, limits.max_tokens_per_minute, now)
        return (
            0.0 if requests is None else requests.wait_s(1, now),
            0.0 if tokens is None else tokens.wait_s(num_tokens, now),
        )

    def enter(self, principal: str, num_tokens: int, now: float) -> None:
        """A request was let in."""
        if (requests := self._requests.get(principal)) is not None:
            requests.take(1, now)
        self.spend(principal, num_tokens, now)

    def correct(self, principal: str, num_tokens: int) -> None:
        """What was let in a moment ago is larger by so many tokens, or smaller."""
        if (tokens := self._tokens.get(principal)) is not None:
            tokens.correct(num_tokens)

    def spend(self, principal: str, num_tokens: int, now: float) -> None:
        """Tokens were used."""
        if (tokens := self._tokens.get(principal)) is not None:
            tokens.take(num_tokens, now)


def _bucket(buckets: dict[str, Bucket], principal: str, per_minute: int | None, now: float) -> Bucket | None:
    if per_minute is None:
        return None
    if principal not in buckets:
        buckets[principal] = Bucket(per_minute, now)
    return buckets[principal]
