"""JSON that is made while it is sent equals JSON that is made at once, and its turn comes where it was written."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.types import TokenLogprob
from chairlift.server.outlet import Outlet
from chairlift.server.scores import Scores
from chairlift.server.shapes import encode_json
from chairlift.server.written import (
    PIECE_BYTES,
    Told,
    Written,
    gathered,
    list_pieces,
    object_pieces,
    objects_pieces,
    pieces_of,
    strung,
)
from server.fake_worker import FakeOptions
from server.running import running_server

values = st.none() | st.integers(-100, 100) | st.text(max_size=5) | st.lists(st.integers(0, 9), max_size=3)
objects = st.dictionaries(st.text(max_size=4), values, max_size=5)


@given(st.lists(objects, max_size=4), st.lists(values, max_size=100))
def test_pieces_are_the_json_of_the_whole(some: list[dict[str, Any]], members: list[Any]) -> None:
    assert b"".join(list_pieces(members)) == encode_json(members)
    assert b"".join(objects_pieces(some)) == encode_json(some)
    for fields in some:
        assert b"".join(object_pieces(fields)) == encode_json(fields)
    written = {"head": 1, "members": Written(lambda: list_pieces(members)), "tail": None}
    assert b"".join(object_pieces(written)) == encode_json({"head": 1, "members": members, "tail": None})


@given(st.lists(st.binary(max_size=10)), st.integers(1, 20))
def test_gathering_loses_nothing(pieces: list[bytes], num_bytes: int) -> None:
    made = list(gathered(pieces, num_bytes))
    assert b"".join(made) == b"".join(pieces)
    assert all(len(piece) >= num_bytes for piece in made[:-1])
    assert all(made)


def test_what_is_strung_is_bytes_only_if_all_of_it_is() -> None:
    assert strung(b"a", b"b") == b"ab"
    later = strung(b"a", Written(lambda: (b"b", b"c")), b"d")
    assert isinstance(later, Written)
    for _ in range(2):  # as often as it is asked
        assert b"".join(pieces_of(later)) == b"abcd"


told = st.lists(st.tuples(st.booleans(), st.lists(st.binary(min_size=1, max_size=6), max_size=4)), max_size=12)


@given(told, st.sets(st.integers(0, 11)))
def test_everything_leaves_an_outlet_in_the_order_in_which_it_was_written(
    writes: list[tuple[bool, list[bytes]]], takes: set[int]
) -> None:
    outlet = Outlet(1 << 20, lambda: None)
    taken, wanted = b"", b""
    for number, (is_later, pieces) in enumerate(writes):
        wanted += b"".join(pieces)
        one: Told = Written(lambda pieces=pieces: pieces) if is_later else b"".join(pieces)  # type: ignore[misc]
        outlet.write(one)
        if number in takes:
            taken += outlet.take()
    outlet.close()
    asyncio.run(outlet.wait())
    while outlet.has_pending:
        taken += outlet.take()
    assert taken == wanted


def test_what_is_yet_to_be_made_does_not_count_as_waiting() -> None:
    overruns: list[int] = []
    outlet = Outlet(100, lambda: overruns.append(1))
    for _ in range(50):
        outlet.write(Written(lambda: (b"x" * 1000,)))
    assert len(outlet.take()) == 1000
    assert not overruns
    for _ in range(200):
        outlet.write(b"x" * 10)
    assert overruns
    assert not outlet.has_pending


def test_scores_are_what_they_were_and_take_twelve_bytes() -> None:
    scores = [TokenLogprob(i, -i / 7, i + 1, tuple((i + j, -1 / (j + 1)) for j in range(i % 21))) for i in range(1000)]
    kept = Scores()
    kept.extend(scores)
    assert list(kept) == list(kept) == scores
    assert len(kept) == 1000
    assert kept.mean == pytest.approx(sum(score.logprob for score in scores) / 1000)
    num_tops = sum(len(score.top) for score in scores)
    num_bytes = sum(sys.getsizeof(getattr(kept, name)) for name in Scores.__slots__)
    assert num_bytes <= (12 * num_tops + 20 * 1000) * 1.2
    assert Scores().mean == 0


@pytest.mark.parametrize("chat", [False, True])
def test_a_large_answer_comes_in_pieces_and_is_what_is_streamed(chat: bool) -> None:
    with running_server(FakeOptions(max_model_len=4000)) as server:
        fields: dict[str, Any] = {"max_tokens": 1800, "ignore_eos": True, "logprobs": 20}
        if chat:
            fields |= {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 20}
        else:
            fields["prompt"] = "x"
        path = "/v1/chat/completions" if chat else "/v1/completions"
        status, headers, body = server.request("POST", path, fields)
        assert status == 200
        assert len(body) > 2 * PIECE_BYTES
        assert "content-length" not in headers
        whole = json.loads(body)["choices"][0]["logprobs"]
        *events, done = server.events(path, fields)
        assert done == "[DONE]"
        chunks = [one["logprobs"] for event in events for one in event["choices"]]
        streamed = [one for one in chunks if one is not None]
        for name, values in whole.items():
            assert values == [value for one in streamed for value in one[name]]
