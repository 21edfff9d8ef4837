"""One frame of `chairlift top`: lines of text that fit a terminal, out of what a server told of this moment.

Nothing in here knows of terminals but their size. Names come from strangers: whatever they hold, they take no more room
than is theirs, and nothing of them can steer a terminal.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chairlift.server.ui.shapes import Live, Row

BOLD, FAINT, GOOD, BAD, PROMPT, DECODE, WAITS, PLAIN = "1", "2", "32", "31", "33", "36", "32", ""
"""What stands between ESC [ and m."""

MIN_WIDTH, MIN_HEIGHT = 40, 8
_LEVELS = " ▁▂▃▄▅▆▇█"
_STATES = {
    "serving": ("serving", GOOD),
    "draining": ("stopping", PROMPT),
    "engine_dead": ("engine lost", BAD),
    "engine_stalled": ("engine hangs", BAD),
}
_PHASES = {"prefill": PROMPT, "sharing": PROMPT, "decode": DECODE, "filler": FAINT, "waiting": WAITS}
_STEERING = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
_ROOMLESS = frozenset(("Mn", "Me"))
_MAX_NAME_CHARS = 256
_NUM_ENDED = 4
_NARROW, _WIDE = 78, 90
_NUM_QUEUED = 3
_NAME, _REQUEST = 18, 22
_BEFORE_IDS = ("chatcmpl-", "cmpl-", "msg_", "resp_")


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a line in one style."""

    text: str
    style: str = PLAIN


Line = list[Span]


def frame(live: Live | None, notice: str, width: int, height: int) -> list[Line]:
    """At most `height` lines of at most `width` columns. `notice` is what is wrong, or empty."""
    width, height = max(width, MIN_WIDTH), max(height, MIN_HEIGHT)
    lines: list[Line] = []
    if live is None:
        lines = [[Span("Chairlift", BOLD)], [], [Span(notice or "...", BAD if notice else FAINT)]]
    else:
        lines = [_head(live, notice), *_figures(live, width), []]
        lines += _lists(live, height - len(lines) - 1, width)  # the last line says which keys there are
    return [_fitted(line, width) for line in lines[: height - 1]]


# ---------------------------------------------------------------- parts


def _lists(live: Live, room: int, width: int) -> Iterator[Line]:
    """A quarter of the room is for tenants, a few lines for what ended last, the rest for those who run and wait."""
    num_waiting = sum(len(engine.waiting) for engine in live.engines)
    num_served = sum(len(engine.running) for engine in live.engines) + min(num_waiting, _NUM_QUEUED)
    num_groups = min(len(live.groups), room // 4 - 1) if room >= 12 else 0
    groups = list(_groups(live, num_groups)) if num_groups > 0 else []
    rest = room - len(groups)
    kept = 1 + min(_NUM_ENDED, len(live.ended)) if live.ended and rest >= 2 * _NUM_ENDED else 0
    served = min(1 + num_served, rest - kept)
    yield from _slots(live, served, width)
    yield from groups
    if rest - served > 1 and live.ended:
        yield from _ended(live, rest - served)


def _head(live: Live, notice: str) -> Line:
    """What is wrong, or how the server is."""
    if notice:
        return [Span("Chairlift ", BOLD), Span(f"● {notice}", BAD)]
    word, style = _STATES.get(live.state, (printable(live.state), BAD))
    model = live.models[0] if live.models else live.engines[0].model
    return [
        Span("Chairlift ", BOLD),
        Span(f"● {word}", style),
        Span(f"  {printable(model)}  up {_long(live.up_s)}", FAINT),
    ]


def _figures(live: Live, width: int) -> Iterator[Line]:
    """How fast, how full, how long it takes; nothing for who may not see sums."""
    counts, lately = live.engines[0].counts, live.lately
    if counts is None or lately is None:
        yield [Span("What you see is yours alone.", FAINT)]
        return
    rates, ttft, itl, blocks = lately.rates, lately.ttft_s, lately.itl_s, counts.blocks
    waiting = f"  {counts.waiting} waiting" if counts.waiting else ""
    reasons = ", ".join(f"{count} {printable(reason)}" for reason, count in counts.waiting_by_reason.items())
    yield [
        Span(f"{rates['output_tokens']:8,.0f} tok/s ", BOLD),
        Span(_spark(lately.series["output_tokens"], 20), DECODE),
        Span(f"  running {counts.running} of {counts.max_num_seqs}", BOLD),
        Span(waiting, WAITS),
        Span(f" ({reasons})" if reasons else "", FAINT),
    ]
    yield [
        Span(f"{rates['prompt_tokens']:8,.0f} prompt tok/s", FAINT),
        Span(f"  TTFT {_time(ttft.p50)} p50, {_time(ttft.p99)} p99"),
        Span(f"  ITL {_time(itl.p50)} p50, {_time(itl.p99)} p99"),
        Span(f"  {rates['steps']:.1f} steps/s" if width >= _WIDE else "", FAINT),
    ]
    if blocks.total:
        share = blocks.used / blocks.total
        found = f", {counts.prefix_hits / counts.prefix_queries:.0%} found" if counts.prefix_queries else ""
        kept, preempted = blocks.cached, counts.preemptions
        yield [
            Span(f"{share:8.0%} cache "),
            *_bar(share, 20, DECODE),
            Span(f"   {blocks.used:,} + {kept:,} kept of {blocks.total:,} blocks{found}", FAINT),
            Span(f", {preempted} preempted" if preempted else "", FAINT),
        ]


def _slots(live: Live, room: int, width: int) -> Iterator[Line]:
    """Who runs, and who waits first, in at most `room` lines, one of them a heading."""
    running = [row for engine in live.engines for row in engine.running]
    waiting = [row for engine in live.engines for row in engine.waiting]
    if not running and not waiting:
        yield [Span("Nobody is being served.", FAINT)]
        return
    request = f"{'REQUEST':<{_REQUEST}} " if width >= _NARROW else ""
    yield [Span(f"SLOT  {'TENANT':<{_NAME}} {request}{'PROMPT':>7} {'TOKENS':>7}  {'AGE':>6}  DOES", FAINT)]
    num_queued = min(len(waiting), _NUM_QUEUED, max(0, room - 2))
    num_rows = room - 1 - num_queued
    hidden = len(running) - num_rows
    if hidden > 0:
        num_rows -= 1
    for row in running[: max(0, num_rows)]:
        yield _row(row, width)
    if hidden > 0:
        yield [Span(f"      and {len(running) - max(0, num_rows)} more", FAINT)]
    for row in waiting[:num_queued]:
        yield _row(row, width)


def _row(row: Row, width: int) -> Line:
    style = _PHASES.get(row.phase, PLAIN)
    is_prompt = row.phase != "decode" or not row.max_output_tokens
    done, most = (row.computed_tokens, row.prompt_tokens) if is_prompt else (row.output_tokens, row.max_output_tokens)
    does = {"prefill": "prompt", "sharing": "shares"}.get(row.phase, row.phase)
    slot = "-" if row.slot is None else str(row.slot)
    again = f"  preempted {row.preemptions}" if row.preemptions else ""
    return [
        Span(f"{slot:>4}  "),
        Span(column(row.tenant or row.principal or "-", _NAME) + " "),
        Span(column(_short(row.id), _REQUEST) + " " if width >= _NARROW else "", FAINT),
        Span(f"{row.prompt_tokens:7,} {row.output_tokens:7,}  {_long(row.age_s):>6}  "),
        Span(f"{printable(does):<8}", style),
        *(_bar(min(1.0, done / most), max(0, min(24, width - 82)), style) if most and width >= _WIDE else []),
        Span(again, BAD),
    ]


def _groups(live: Live, count: int) -> Iterator[Line]:
    yield [
        Span(
            f"{'TENANT':<24} {'RUNNING':>8} {'WAITING':>8} {'ENDED':>7} {'TOKENS':>9} {'TTFT p50':>9} {'p99':>9}", FAINT
        )
    ]
    for group in live.groups[:count]:
        name = " ".join(filter(None, (group.tenant, group.principal))) or "(no name)"
        yield [
            Span(column(name, 24)),
            Span(f" {group.running:8,} {group.waiting:8,} {group.ended:7,} {group.output_tokens:9,}"),
            Span(f" {_time(group.ttft_p50_s):>9} {_time(group.ttft_p99_s):>9}"),
        ]


def _ended(live: Live, count: int) -> Iterator[Line]:
    yield [Span(f"{'ENDED':<24} {'PROMPT':>8} {'TOKENS':>8} {'WAITED':>8} {'FIRST':>8} {'TOTAL':>8}  BY", FAINT)]
    for one in live.ended[: count - 1]:
        is_good = set(one.ended_by.split(", ")) <= {"stop", "length"}
        yield [
            Span(column(_short(one.id), 24), FAINT),
            Span(f" {one.prompt_tokens:8,} {one.output_tokens:8,} {_time(one.queue_s):>8}"),
            Span(f" {_time(one.ttft_s):>8} {_time(one.total_s):>8}  "),
            Span(printable(one.ended_by), PLAIN if is_good else BAD),
        ]


# ---------------------------------------------------------------- text


def printable(text: str) -> str:
    """`text` without anything that steers a terminal or turns it around; marks that take no room are left out."""
    composed = unicodedata.normalize("NFC", text[:_MAX_NAME_CHARS])
    categories = ((char, unicodedata.category(char)) for char in composed)
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if category in _STEERING else char
        for char, category in categories
        if category not in _ROOMLESS
    )


def columns(text: str) -> int:
    """How many columns a terminal takes for it."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def column(text: str, width: int) -> str:
    """`text` in exactly so many columns; what is longer ends in an ellipsis."""
    shown = printable(text)
    if columns(shown) > width:
        shown = _cut(shown, width - 1) + "…"
    return shown + " " * (width - columns(shown))


def _cut(text: str, width: int) -> str:
    taken = 0
    for place, char in enumerate(text):
        taken += columns(char)
        if taken > width:
            return text[:place]
    return text


def _fitted(line: Line, width: int) -> Line:
    """As much of a line as has room."""
    fitted: Line = []
    for span in line:
        shown = _cut(span.text, width)
        if shown:
            fitted.append(Span(shown, span.style))
        width -= columns(shown)
        if width <= 0 or shown != span.text:
            break
    return fitted


def _short(request_id: str | None) -> str:
    """An id without what its API puts before it."""
    if request_id is None:
        return "?"
    return request_id.removeprefix(next((one for one in _BEFORE_IDS if request_id.startswith(one)), ""))


def _bar(share: float, width: int, style: str) -> Line:
    if width < 4:
        return []
    full = round(min(max(share, 0.0), 1.0) * width)
    return [Span("━" * full, style), Span("─" * (width - full), FAINT)]


def _spark(values: Sequence[float], width: int) -> str:
    """The last values as blocks of their height."""
    last = list(values[-width:])
    most = max(last, default=0) or 1
    return "".join(_LEVELS[min(8, -(-8 * int(value) // int(most)))] for value in last)


def _time(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 99.95 else f"{value:.0f} s"


def _long(value: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if value >= 2 * size:
            return f"{value / size:.0f} {unit}"
    return f"{value:.0f} s"
