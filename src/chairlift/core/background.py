"""The background: requests that run on what others leave, however many of them there are.

By itself it may use everything. As soon as anybody else is there, waiting or running, only a few of its sequences keep
their slots, and a step holds little of their prompts; while others lack slots or blocks, or beside a controller time,
none of it has any. What is taken away goes on later where it was, like after any preemption. It never ages: it has all
day. Since whoever comes waits for the step that is under way, its own steps hold a part of the prompts that a step may
hold. A held batch is computed to its end, whoever is in it.
"""

from __future__ import annotations

from chairlift.core.ordering import Waiting
from chairlift.core.running import RunningSet, in_order
from chairlift.core.sequence import Sequence
from chairlift.core.types import BACKGROUND_PRIORITY, Limits

MAX_HELD_BACK_SEQS = 2
"""So many of the background run while others are there: rows cost a step little, and it must not stand still."""
MAX_HELD_BACK_TOKENS = 32
"""Of its prompts, in a step that others take part in."""
LINGER_S = 1.0
"""So long after they left it still counts others as there: who converses is back soon, and would meet a full step."""


def is_background(sequence: Sequence) -> bool:
    """Whether a sequence belongs to it."""
    return sequence.order[0] >= BACKGROUND_PRIORITY


def is_there(running: RunningSet, waiting: Waiting) -> bool:
    """Whether there is any of it."""
    return running.worst_level >= BACKGROUND_PRIORITY or waiting.has_background


def is_shared(running: RunningSet, waiting: Waiting) -> bool:
    """Whether anybody else is there."""
    if waiting and waiting.best_level < BACKGROUND_PRIORITY:
        return True
    return any(level < BACKGROUND_PRIORITY for level in running.num_by_level)


def surplus(running: RunningSet, *, keeps_none: bool) -> list[Sequence]:
    """Those that give up their slots while it is held back: all but the first, or with `keeps_none` all."""
    background = sorted(filter(is_background, running.live()), key=in_order)
    return background[0 if keeps_none else MAX_HELD_BACK_SEQS :]


def num_running(running: RunningSet) -> int:
    """How many of it prefill or decode."""
    return sum(count for level, count in running.num_by_level.items() if level >= BACKGROUND_PRIORITY)


def is_full(running: RunningSet) -> bool:
    """Whether no more of it may join while it is held back."""
    return num_running(running) >= MAX_HELD_BACK_SEQS


def max_tokens_alone(limits: Limits) -> int:
    """Of its prompts, in a step of its own: whoever comes meanwhile waits for that step to end."""
    return max(MAX_HELD_BACK_TOKENS, limits.max_num_batched_tokens // 4)
