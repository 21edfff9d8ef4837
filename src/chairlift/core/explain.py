"""What was decided about one answer, for people as a sentence and for programs as plain data.

Both are made of a `Finish` alone, and say only what happened: who met no obstacle reads a short sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from chairlift.core.deadlines import TTFT
from chairlift.core.types import Finish, FinishReason, PreemptReason, WaitReason

SHOWN_S = 0.001
"""Waits below this are left out of a sentence, in seconds."""
AT_ONCE_S = 0.01
"""Who joined within so many seconds of arriving started at once: the way to the engine takes some of them."""
MAX_NAMED = 3
"""Most preempting requests that a sentence names."""

Name = Callable[[int], str | None]
"""What to call the request with this id; None if it may not be named."""

_WAITED_FOR = {
    WaitReason.STEP: "the next step",
    WaitReason.BATCH: "a batch",
    WaitReason.SLOTS: "a slot",
    WaitReason.BLOCKS: "cache blocks",
    WaitReason.TOKENS: "the token budget",
    WaitReason.PREFIX: "a beginning that another one was computing",
}


def numbered(request_id: int) -> str:
    """Requests by the numbers that the engine's owner gave them."""
    return f"request {request_id}"


def unnamed(request_id: int) -> None:
    """Nobody is named: for those who may not know who else is served."""


def sentence(finish: Finish, name: Name = numbered) -> str:
    """How this answer fared, in one sentence; `name` says what to call the requests that preempted it."""
    text = "; ".join(part for part in _parts(finish, name) if part)
    return f"{text[0].upper()}{text[1:]}."


def facts(finish: Finish, name: Name = numbered) -> dict[str, object]:
    """The same as data that JSON can hold; times in seconds, counted from the arrival."""
    decisions = finish.decisions
    return {
        "queued_behind": decisions.queued_behind,
        "passed": decisions.passed,
        "waited_s": {reason.value: _rounded(seconds) for reason, seconds in decisions.waited},
        "preemptions": [
            {"by": by, "reason": reason.value, "count": count} for by, reason, count in _preemptions(finish, name)
        ],
        "preempted_s": _rounded(decisions.preempted_s),
        "prompt_tokens": finish.num_prompt_tokens,
        "cached_tokens": finish.num_cached_tokens,
        "recomputed_tokens": decisions.recomputed_tokens,
        "chunks": decisions.chunks,
        "output_tokens": finish.num_output_tokens,
        "started_after_s": _after(finish, finish.first_scheduled),
        "first_token_after_s": _after(finish, finish.first_token),
        "ended_after_s": _after(finish, finish.finished),
        "ended_by": finish.reason.value,
    }


def missed(finish: Finish) -> Literal["ttft", "e2e"]:
    """Which of its deadlines ended an answer whose reason is `FinishReason.DEADLINE`."""
    return "ttft" if finish.error is not None and finish.error.startswith(TTFT) else "e2e"


def _parts(finish: Finish, name: Name) -> Iterator[str]:
    yield from _queue(finish)
    yield _preempted(finish, name)
    if finish.first_scheduled is not None:
        yield _prompt(finish)
    yield _output(finish)
    yield _end(finish)


def _queue(finish: Finish) -> Iterator[str]:
    decisions = finish.decisions
    waits = [
        f"{_duration(seconds)} for {_WAITED_FOR[reason]}"
        for reason, seconds in decisions.waited
        if seconds >= (AT_ONCE_S if reason is WaitReason.STEP else SHOWN_S)
    ]
    if decisions.queued_behind:
        yield f"{_count(decisions.queued_behind, 'other')} waited when it came"
    if waits:
        yield f"waited {_listed(waits)}"
    if decisions.passed:
        yield f"passed by {_count(decisions.passed, 'later one')}"
    if finish.first_scheduled is None:
        yield "never started"
    elif not (waits or decisions.queued_behind):
        delay_s = finish.first_scheduled - finish.arrival
        yield "started at once" if delay_s < AT_ONCE_S else f"started after {_duration(delay_s)}"


def _preempted(finish: Finish, name: Name) -> str:
    groups = _preemptions(finish, name)
    num_preemptions = sum(count for _, _, count in groups)
    if not groups:
        return ""
    if len(groups) == 1:
        by, reason, count = groups[0]
        text = f"preempted {_times(count)} by {by} ({reason.value})"
    else:
        named = [f"{_times(count)} by {by} ({reason.value})" for by, reason, count in groups[:MAX_NAMED]]
        if rest := sum(count for _, _, count in groups[MAX_NAMED:]):
            named.append(f"{_times(rest)} by others")
        text = f"preempted {_times(num_preemptions)} ({_listed(named)})"
    if finish.decisions.preempted_s >= SHOWN_S:
        in_all = " in all" if num_preemptions > 1 else ""
        text += f", {_duration(finish.decisions.preempted_s)}{in_all} until it went on"
    return text


def _preemptions(finish: Finish, name: Name) -> list[tuple[str, PreemptReason, int]]:
    """(whom it made room for, why, how often), in the order of the first time; those without a name count as one."""
    groups: dict[tuple[str | None, PreemptReason], list[int]] = {}
    for request_id, reason in finish.decisions.preemptions:
        own = "an answer before it" if request_id == finish.id else None
        groups.setdefault((own or name(request_id), reason), []).append(request_id)
    return [
        (by or ("another request" if len(set(ids)) == 1 else "other requests"), reason, len(ids))
        for (by, reason), ids in groups.items()
    ]


def _prompt(finish: Finish) -> str:
    decisions = finish.decisions
    text = _count(finish.num_prompt_tokens, "prompt token")
    chunks = "one chunk" if decisions.chunks == 1 else f"{decisions.chunks} chunks"
    if decisions.chunks and not decisions.recomputed_tokens:
        text += f" in {chunks}"
    if finish.num_cached_tokens:
        text += f", {finish.num_cached_tokens} of them from the cache"
    if decisions.recomputed_tokens:
        # Among them may be tokens of the answer: a prompt of three was said to have come in seven chunks.
        text += f", {_count(decisions.recomputed_tokens, 'token')} computed again, all in {chunks}"
    return text


def _output(finish: Finish) -> str:
    if finish.first_token is None:
        return ""
    first = _duration(finish.first_token - finish.arrival)
    others = finish.num_output_tokens - 1
    if others < 1:
        return f"its only token after {first}"
    return f"first token after {first}, {others} more in {_duration(finish.finished - finish.first_token)}"


def _end(finish: Finish) -> str:
    """What users wrote, and what went wrong inside, is not repeated here."""
    match finish.reason:
        case FinishReason.LENGTH:
            return "ended by its length"
        case FinishReason.STOP if isinstance(finish.stop_reason, str):
            return "ended by a stop string"
        case FinishReason.STOP if finish.stop_reason is not None:
            return "ended by a stop token"
        case FinishReason.STOP:
            return "ended by itself"
        case FinishReason.ABORT:
            return f"given up after {_duration(finish.finished - finish.arrival)}"
        case FinishReason.DEADLINE:
            what = "first token" if missed(finish) == "ttft" else "end"
            return f"given up after {_duration(finish.finished - finish.arrival)}: its {what} did not come in time"
        case FinishReason.ERROR:
            return "ended by an error"


def _after(finish: Finish, point: float | None) -> float | None:
    return None if point is None else _rounded(point - finish.arrival)


def _rounded(seconds: float) -> float:
    """To the microsecond; clocks that went back count as standing still."""
    return round(max(seconds, 0.0), 6)


def _duration(seconds: float) -> str:
    if seconds < 0.0995:
        return f"{max(seconds, 0.0) * 1000:.0f} ms"
    if seconds < 0.995:
        return f"{seconds:.2g} s"
    return f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:.0f} s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _listed(items: list[str]) -> str:
    """With commas and a last "and"."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
