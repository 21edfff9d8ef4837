"""Who runs and who waits at one moment: made when somebody looks, and of no cost before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from chairlift.core.sequence import Sequence, State

MAX_RUNNING = 512
MAX_WAITING = 64
"""Most sequences that are described; how many there are the counts say."""


class Phase(StrEnum):
    """What a sequence does."""

    WAITING = "waiting"
    SHARING = "sharing"
    """Has a slot, and waits for another choice of its request to compute their prompt."""
    PREFILL = "prefill"
    DECODE = "decode"
    FILLER = "filler"
    """Over, and computed until its batch is."""


_PHASES = {
    State.WAITING: Phase.WAITING,
    State.FORKING: Phase.SHARING,
    State.PREFILLING: Phase.PREFILL,
    State.DECODING: Phase.DECODE,
    State.HELD: Phase.FILLER,
}


@dataclass(frozen=True, slots=True)
class Seen:
    """A sequence as it is now."""

    id: int
    choice: int
    slot: int
    """-1 if it has none."""
    phase: Phase
    num_prompt_tokens: int
    num_output_tokens: int
    max_output_tokens: int
    """It ends there at the latest."""
    num_computed_tokens: int
    """With keys and values in the cache, or on the way there in the step that is being computed."""
    num_cached_tokens: int
    """Of its prompt, found in the prefix cache."""
    num_blocks: int
    num_preemptions: int
    arrival: float
    first_scheduled: float | None


@dataclass(frozen=True, slots=True)
class Look:
    """Those who run, by slot, and some of those who wait, by their place as far as it is known."""

    running: list[Seen]
    waiting: list[Seen]


def look(live: Iterable[Sequence], waiting: Iterable[Sequence], held: Iterable[Sequence]) -> Look:
    """Describe a scheduler's sequences. `live` are all that are not over, `held` those that are fillers."""
    slots = [sequence for sequence in live if sequence.slot >= 0]
    running = sorted([*slots, *held], key=lambda sequence: sequence.slot)
    first = sorted(waiting, key=lambda sequence: sequence.order)
    return Look(
        [_seen(sequence) for sequence in running[:MAX_RUNNING]],
        [_seen(sequence) for sequence in islice(first, MAX_WAITING)],
    )


def _seen(sequence: Sequence) -> Seen:
    is_decoding = sequence.state is State.DECODING
    return Seen(
        id=sequence.request.id,
        choice=sequence.choice,
        slot=sequence.slot,
        phase=_PHASES[sequence.state],
        num_prompt_tokens=sequence.num_prompt,
        num_output_tokens=sequence.num_output,
        max_output_tokens=sequence.end - sequence.num_prompt,
        num_computed_tokens=len(sequence.tokens) - 1 if is_decoding else sequence.computed,
        num_cached_tokens=sequence.num_cached,
        num_blocks=len(sequence.blocks),
        num_preemptions=len(sequence.preemptions),
        arrival=sequence.request.arrival,
        first_scheduled=sequence.first_scheduled,
    )
