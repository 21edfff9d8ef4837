"""Steps of a run of any length in bounded memory: past a number of them, neighbours are kept as one span.

8 steps in at most 4 spans     |0 1|2 3|4 5|6 7|
the 9th step                   |0 1 2 3|4 5 6 7|8|
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_SPANS = 4096


@dataclass(slots=True)
class Span:
    """Neighbouring steps, times in seconds. Sums weighted by time are over the time in which steps ran."""

    begin: float
    end: float
    num_steps: int
    busy_s: float
    decode_row_s: float
    """Decoding rows times seconds, summed over the steps."""
    chunk_row_s: float
    filler_row_s: float
    max_rows: int
    """Of a step: decoding rows, chunks and fillers."""
    num_tokens: int
    """Computed: fillers, decodes and chunks."""
    num_chunk_tokens: int
    held_blocks: int
    """Blocks that sequences held when the last step was over."""
    max_held_blocks: int
    """The most after any of the steps."""
    kept_blocks: int
    """Blocks that nobody held then, but whose content could be found again."""

    def take(self, later: Span) -> None:
        """Become this span and the one after it."""
        self.end = later.end
        self.num_steps += later.num_steps
        self.busy_s += later.busy_s
        self.decode_row_s += later.decode_row_s
        self.chunk_row_s += later.chunk_row_s
        self.filler_row_s += later.filler_row_s
        self.max_rows = max(self.max_rows, later.max_rows)
        self.num_tokens += later.num_tokens
        self.num_chunk_tokens += later.num_chunk_tokens
        self.held_blocks = later.held_blocks
        self.max_held_blocks = max(self.max_held_blocks, later.max_held_blocks)
        self.kept_blocks = later.kept_blocks


class Spans:
    """All steps so far, in at most `max_spans` spans of `width` steps each; the last may have fewer."""

    def __init__(self, max_spans: int = MAX_SPANS) -> None:
        self.width = 1
        self.spans: list[Span] = []
        self._max_spans = max_spans

    def add(self, step: Span) -> None:
        """Note a step. Costs the same on average however many there were."""
        spans = self.spans
        if spans and spans[-1].num_steps < self.width:
            spans[-1].take(step)
            return
        if len(spans) == self._max_spans:
            self._halve()
            if spans[-1].num_steps < self.width:
                spans[-1].take(step)
                return
        spans.append(step)

    def shrink(self, max_spans: int) -> None:
        """Make do with fewer spans from here on."""
        self._max_spans = max_spans
        while len(self.spans) > max_spans:
            self._halve()

    def _halve(self) -> None:
        for first, second in zip(self.spans[::2], self.spans[1::2], strict=False):
            first.take(second)
        del self.spans[1::2]
        self.width *= 2
