"""From what was collected to what a page shows."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from chairlift.core.explain import sentence
from chairlift.report.data import (
    Answers,
    Chunks,
    Curves,
    Engine,
    Group,
    Run,
    Stays,
    Steps,
)
from chairlift.report.outcomes import Outcomes
from chairlift.report.rows import Answer, Left, Stay
from chairlift.report.spans import Span
from chairlift.report.thinning import MAX_POINTS, distribution, rounded, series
from chairlift.report.timeline import MIN_SPANS, Timeline

NONE = -1.0
"""Where there is no such time."""
FULL_ENGINES = 2
"""As many have curves as fine as one alone has; more of them share."""


def make_run(
    name: str, source: str, timelines: Sequence[Timeline], outcomes: Outcomes, notes: Sequence[str] = ()
) -> Run:
    """The picture of a run whose engines are these."""
    share = min(1.0, FULL_ENGINES / max(1, len(timelines)))
    for timeline in timelines:
        timeline.close(share)
    origin = min((t.origin for t in timelines if t.origin is not None), default=0.0)
    end = max(outcomes.last, *(t.last for t in timelines)) if timelines else outcomes.last
    end = origin if end == -inf else end
    max_points = max(MIN_SPANS, int(MAX_POINTS * share))
    engines = [_engine(timeline, origin, end, max_points) for timeline in timelines]
    outcomes.cover_names()
    groups = [
        Group(
            name=_encodable(owner),
            requests=group.num_requests,
            completed=group.num_completed,
            prompt_tokens=group.num_prompt_tokens,
            cached_tokens=group.num_cached_tokens,
            output_tokens=group.num_output_tokens,
            ttft=distribution(group.ttft.counted()),
            e2e=distribution(group.e2e.counted()),
        )
        for owner, group in zip(outcomes.names.names, outcomes.groups, strict=True)
    ]
    found = {
        "ttft": distribution(outcomes.ttft.counted()),
        "itl": distribution(outcomes.itl.counted()),
        "e2e": distribution(outcomes.e2e.counted()),
        "queue": distribution(outcomes.queue.counted()),
    }
    return Run(
        name=_encodable(name),
        source=source,
        duration_s=rounded(end - origin),
        requests=outcomes.num_requests + outcomes.num_refused,
        completed=outcomes.num_completed,
        refused=outcomes.num_refused,
        unfinished=outcomes.num_open,
        reasons=dict(sorted(outcomes.reasons.items())),
        prompt_tokens=outcomes.num_prompt_tokens,
        cached_tokens=outcomes.num_cached_tokens,
        output_tokens=sum(group.output_tokens for group in groups),
        preemptions=outcomes.num_preemptions,
        latencies={key: found_one for key, found_one in found.items() if found_one is not None},
        groups=groups,
        engines=engines,
        notes=[*notes, *_notes(timelines, outcomes, engines)],
    )


def _encodable(text: str) -> str:
    """Half a pair of surrogates, which JSON may bring in, is in no file."""
    return text.encode("utf-8", "replace").decode()


def _notes(timelines: Sequence[Timeline], outcomes: Outcomes, engines: Sequence[Engine]) -> list[str]:
    """What of the run is not in the picture, or coarser than it was."""
    notes = []
    for timeline, engine in zip(timelines, engines, strict=True):
        where = f"{engine.name}: " if len(engines) > 1 else ""
        if timeline.stays_until < inf and timeline.window.end == inf:
            notes.append(
                f"{where}slots are shown up to {engine.stays_until:.3f} s; whoever joined later would make the page "
                "too large"
            )
        if engine.steps.width > 1:
            notes.append(f"{where}occupancy and cache use are means of {engine.steps.width} steps each")
        if engine.waiting.low:
            notes.append(f"{where}the queue is shown as mean, least and most of {len(engine.waiting.time)} equal times")
    if any(values.is_rounded for values in (outcomes.ttft, outcomes.itl, outcomes.e2e)):
        notes.append("latencies are rounded to four digits: there were too many different ones to keep")
    return notes


def _engine(timeline: Timeline, origin: float, end: float, max_points: int) -> Engine:
    scheduler = timeline.scheduler
    num_slots = scheduler.started_with.max_num_seqs
    waiting, max_waiting = series(
        zip(timeline.queue_times, timeline.queue_changes, strict=True), origin, max(end, origin), max_points
    )
    stays = sorted(timeline.stays, key=lambda stay: (stay.joined, stay.slot))
    numbers: dict[Answer, int] = {}
    for stay in stays:
        numbers.setdefault(stay.answer, len(numbers))
    spans = timeline.spans.spans
    until = timeline.stays_until
    return Engine(
        name=_encodable(timeline.name),
        num_slots=num_slots,
        num_blocks=scheduler.kv.pool.num_blocks,
        block_size=scheduler.kv.block_size,
        num_steps=timeline.num_steps,
        busy_s=rounded(timeline.busy_s),
        slot_use=round(timeline.num_rows / (timeline.num_steps * num_slots), 6) if timeline.num_steps else 0.0,
        num_filler_rows=timeline.num_filler_rows,
        max_waiting=max_waiting,
        max_held_blocks=max((span.max_held_blocks for span in spans), default=0),
        steps=_steps(timeline.spans.width, spans, origin),
        waiting=waiting,
        stays=_stays(stays, numbers, origin, end),
        chunks=_chunks(stays, origin),
        answers=_answers(list(numbers), timeline, origin),
        curves=_curves(timeline, origin),
        stays_from=timeline.window.begin,
        stays_until=rounded(until - origin) if until < inf else rounded(end - origin),
    )


def _steps(width: int, spans: Sequence[Span], origin: float) -> Steps:
    def mean(total: float, span: Span) -> float:
        return round(total / span.busy_s, 3) if span.busy_s > 0 else 0.0

    return Steps(
        width=width,
        begin=[rounded(span.begin - origin) for span in spans],
        end=[rounded(span.end - origin) for span in spans],
        busy=[round(span.busy_s / (span.end - span.begin), 4) if span.end > span.begin else 1.0 for span in spans],
        decodes=[mean(span.decode_row_s, span) for span in spans],
        chunks=[mean(span.chunk_row_s, span) for span in spans],
        fillers=[mean(span.filler_row_s, span) for span in spans],
        max_rows=[span.max_rows for span in spans],
        tokens=[span.num_tokens for span in spans],
        chunk_tokens=[span.num_chunk_tokens for span in spans],
        held=[span.held_blocks for span in spans],
        max_held=[span.max_held_blocks for span in spans],
        kept=[span.kept_blocks for span in spans],
    )


def _stays(stays: Sequence[Stay], numbers: dict[Answer, int], origin: float, end: float) -> Stays:
    def when(time: float | None) -> float:
        return NONE if time is None else max(0.0, rounded(time - origin))

    return Stays(
        slot=[stay.slot for stay in stays],
        answer=[numbers[stay.answer] for stay in stays],
        joined=[when(stay.joined) for stay in stays],
        decodes_from=[when(stay.decodes_from) for stay in stays],
        left=[when(end if stay.left is None else stay.left) for stay in stays],
        held_until=[when(stay.held_until) for stay in stays],
        why=[stay.why.value for stay in stays],
        again=[stay.again for stay in stays],
    )


def _chunks(stays: Sequence[Stay], origin: float) -> Chunks:
    rows = [(number, chunk) for number, stay in enumerate(stays) for chunk in stay.chunks]
    return Chunks(
        stay=[number for number, _ in rows],
        begin=[rounded(begin - origin) for _, (begin, _, _, _) in rows],
        seconds=[rounded(end - begin) for _, (begin, end, _, _) in rows],
        start=[start for _, (_, _, start, _) in rows],
        count=[count for _, (_, _, _, count) in rows],
    )


def _answers(answers: Sequence[Answer], timeline: Timeline, origin: float) -> Answers:
    labels = timeline.outcomes.labels

    def name(request_id: int) -> str:
        return _encodable(f"request {labels.get(request_id, request_id)}")

    reasons = {stay.answer: stay.why for stay in timeline.stays}
    return Answers(
        id=[answer.about.id for answer in answers],
        choice=[answer.choice for answer in answers],
        label=[_encodable(labels.get(answer.about.id, "")) for answer in answers],
        owner=[timeline.outcomes.owner(answer.about) for answer in answers],
        priority=[answer.about.priority for answer in answers],
        arrival=[rounded(answer.about.arrival - origin) for answer in answers],
        prompt_tokens=[answer.about.num_prompt_tokens for answer in answers],
        output_tokens=[-1 if answer.finish is None else answer.finish.num_output_tokens for answer in answers],
        sentence=[
            _unfinished(reasons[answer]) if answer.finish is None else sentence(answer.finish, name)
            for answer in answers
        ],
    )


def _unfinished(why: Left) -> str:
    return "Preempted, and not over when the record ended." if why is Left.PREEMPTED else "Still running at the end."


def _curves(timeline: Timeline, origin: float) -> Curves:
    service = timeline.service
    num = max((len(point) for point in service.points), default=0)
    return Curves(
        input_weight=service.input_weight,
        output_weight=service.output_weight,
        time=[rounded(time - origin) for time in service.times],
        service=[
            [round(point[owner], 3) if owner < len(point) else 0.0 for point in service.points] for owner in range(num)
        ],
    )
