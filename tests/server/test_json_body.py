"""What is JSON and what is not."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.server.errors import ApiError
from chairlift.server.json_body import MAX_STRUCTURE, convert, read_object


class Inner(msgspec.Struct):
    size: int


class Outer(msgspec.Struct):
    name: str | None = None
    inner: list[Inner] | None = None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1, "a": 2}',
        b'{"a": {"b": 1, "b": 1}}',
        b'{"a": "\\ud800"}',
        b'{"a": "\\udc00\\ud800"}',
        b'{"\\ud800": 1}',
        b'{"a": ' + b"9" * 100_000 + b"}",
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a": ' * 100_000,
        b'{"a": ' + b"[" * 1_000_000,
        b'{"a": [' + b"[]," * MAX_STRUCTURE + b"[]]}",
        b"{" + b",".join(b'"%d":1' % key for key in range(MAX_STRUCTURE)) + b"}",
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}",
        b'{"a": "\xff"}',
        b'{"a": "\x00"}',
        b"{'a': 1}",
        b'{"a": 1,}',
        b"{} {}",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_what_is_not_a_json_object_is_a_400(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        read_object(body)
    assert caught.value.status == 400
    assert len(caught.value.message) < 200


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    ),
    st.booleans(),
)  # fmt: skip
def test_every_json_object_is_read_as_it_is(content: object, ascii_only: bool) -> None:
    encoded = json.dumps({"content": content}, ensure_ascii=ascii_only).encode()
    assert read_object(encoded) == {"content": content}


def test_an_escaped_pair_is_one_character() -> None:
    assert read_object(b'{"a": "\\ud83d\\ude42 \\\\ud800"}') == {"a": "🙂 \\ud800"}


def test_a_wrong_type_names_the_place_and_the_field() -> None:
    with pytest.raises(ApiError) as caught:
        convert({"inner": [{"size": 1}, {"size": True}]}, Outer)
    assert caught.value.param == "inner"
    assert caught.value.message.startswith("inner[1].size: Expected `int`")


def test_unknown_fields_are_ignored() -> None:
    assert convert({"name": "x", "more": [1]}, Outer) == Outer("x")
