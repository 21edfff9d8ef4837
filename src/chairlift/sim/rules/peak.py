"""Who joins where the cache is kept for the longest answers, as far as these are in it at one time.

Nobody is preempted under such a rule, and more run than if everybody's longest answer were kept from the beginning:

    a    ######......            # computed, . to come
    b    ############..          the most that all of them hold at one time is when a ends: 12 + 18 + ..., not the sum
    c    ########........        of their longest

Source: the estimate of LightLLM, which S-LoRA and the artifact of VTC (Sheng et al. 2024, arXiv:2401.00588) use too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chairlift.core.errors import InvalidOption
from chairlift.core.sequence import Sequence, State


@dataclass(frozen=True, slots=True)
class PeakTokens:
    """Lets one join if the cache has room for all that those who run and it can hold at one time.

    `num_tokens` is what the cache holds. After a join nobody else joins until those who joined then have decoded
    `decodes_between` steps; in the same step others may. Each principal who has something in the cache takes
    `owner_tokens` of it besides: S-LoRA keeps adapters there, and counts four tokens for each of their ranks.

    Raises:
        InvalidOption: a cache that holds nothing, or a negative number of steps or tokens.
    """

    num_tokens: int
    decodes_between: int = 0
    owner_tokens: int = 0

    def __post_init__(self) -> None:
        if self.num_tokens < 1 or self.decodes_between < 0 or self.owner_tokens < 0:
            raise InvalidOption("a peak is of at least 1 token, and all else about it at least 0")

    def __call__(self, candidate: Sequence, running: list[Sequence]) -> bool:
        if self.decodes_between:
            decoded = [s.num_output for s in running if s.state is State.DECODING]
            # The first output token came with the prompt.
            if decoded and min(decoded) <= self.decodes_between:
                return False
        room = self.num_tokens
        if self.owner_tokens:
            room -= self.owner_tokens * len({s.owner[0] for s in (*running, candidate)})
        return peak_tokens(_held(s) for s in (*running, candidate)) < room


def _held(sequence: Sequence) -> tuple[int, int]:
    """Tokens in the cache after the next step in which all decode, and at most: the last of an answer never gets there.

    One whose prompt is computed now is a token ahead of those who decode: they wait for it.
    """
    now = len(sequence.tokens) + (sequence.state is not State.DECODING)
    return now, max(now, sequence.end - 1)


def peak_tokens(sequences: Iterable[tuple[int, int]]) -> int:
    """The most tokens that sequences hold at one time, if each gets one a step until it has its most.

    Of (tokens now, tokens at most) of each. The peak is in the step in which one of them ends: those with as much to
    come as it has are as much longer then, and those with less are gone.
    """
    peak = held = 0
    for number, (to_come, now) in enumerate(sorted(((most - now, now) for now, most in sequences), reverse=True), 1):
        held += now
        peak = max(peak, held + number * to_come)
    return peak
