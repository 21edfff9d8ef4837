from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.bench import sse
from chairlift.bench.sse import BadStream, EventStream

STREAM = (
    b": hello\n\n"
    b'data: {"a": 1}\n\n'
    b"event: x\r\nid: 7\r\ndata:no space\r\n\r\n"
    b"data: two\ndata: lines\n\n\n\n"
    b"data: \xc3\xa9\n\n"
    b"data: [DONE]\n\n"
    b"data: cut off"
)
PAYLOADS = [b'{"a": 1}', b"no space", b"two\nlines", b"\xc3\xa9", b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=40))
def test_the_cuts_do_not_matter(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    events = EventStream()
    got = [data for a, b in pairwise(places) for data in events.feed(STREAM[a:b])]
    assert got == PAYLOADS


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_LINE_BYTES", 10)
    with pytest.raises(BadStream):
        list(EventStream().feed(b"data: 1234567890"))
