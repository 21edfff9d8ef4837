"""Forms with files: read the same however they are cut, within bounds, and refused where they are none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import HTTP
from itertools import pairwise
from random import Random

import pytest

from chairlift.server.batches.form import MAX_FIELDS, MAX_HEADER_BYTES, FormReader, Part, boundary_of, read_form
from chairlift.server.errors import ApiError

BOUNDARY = b"----x(1)'y"
WHOLE = (
    b'--%s\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--%s\r\nContent-Disposition: form-data; name="file"; filename="a \\"b\\".jsonl"\r\n'
    b"Content-Type: application/octet-stream\r\n\r\n"
    b"one\r\n--other\r\n\r\n----x\r\ntwo\r\n"
    b"\r\n--%s--\r\nepilogue"
) % (BOUNDARY, BOUNDARY, BOUNDARY)
EXPECTED = [("purpose", None, b"batch"), ("file", 'a "b".jsonl', b"one\r\n--other\r\n\r\n----x\r\ntwo\r\n")]


def form(*parts: tuple[bytes, bytes], boundary: bytes = BOUNDARY) -> bytes:
    return b"".join(b"--%b\r\n%b\r\n\r\n%b\r\n" % (boundary, *part) for part in parts) + b"--%b--\r\n" % boundary


def read(pieces: Iterator[bytes], boundary: bytes = BOUNDARY) -> list[tuple[str, str | None, bytes]]:
    async def stream() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def main() -> list[tuple[str, str | None, bytes]]:
        found: list[tuple[str, str | None, bytes]] = []
        async for one in read_form(stream(), boundary):
            if isinstance(one, Part):
                found.append((one.name, one.filename, b""))
            else:
                name, filename, content = found[-1]
                found[-1] = name, filename, content + one
        return found

    return asyncio.run(main())


def in_pieces(data: bytes, *cuts: int) -> Iterator[bytes]:
    edges = [0, *cuts, len(data)]
    return (data[a:b] for a, b in pairwise(edges))


def test_a_form_cut_anywhere_is_the_same_form() -> None:
    for cut in range(len(WHOLE) + 1):
        assert read(in_pieces(WHOLE, cut)) == EXPECTED, cut
    assert read(WHOLE[i : i + 1] for i in range(len(WHOLE))) == EXPECTED


def test_forms_of_any_content_are_read_as_the_library_for_letters_reads_them() -> None:
    random = Random(1)
    alphabet = [b"\r\n", b"-", b"--", BOUNDARY[:-1], b"\n", b"\r", b"a", b"\0\xff"]
    for _ in range(300):
        contents = [b"".join(random.choices(alphabet, k=random.randrange(9))) for _ in range(random.randrange(1, 4))]
        heads = [b'content-disposition: form-data; name="f%d"; filename=x' % i for i in range(len(contents))]
        data = form(*zip(heads, contents, strict=True))
        cuts = sorted(random.randrange(len(data)) for _ in range(random.randrange(6)))
        found = read(in_pieces(data, *cuts))
        assert [content for _, _, content in found] == contents
        letter = BytesParser(policy=HTTP).parsebytes(
            b'content-type: multipart/form-data; boundary="%b"\r\n\r\n' % BOUNDARY + data
        )
        assert isinstance(letter, EmailMessage)
        assert len(list(letter.iter_parts())) == len(contents)


def test_memory_is_bounded_by_the_pieces() -> None:
    reader = FormReader(BOUNDARY)
    list(reader.feed(WHOLE[: WHOLE.index(b"one")]))
    for _ in range(1000):
        given = sum(len(one) for one in reader.feed(b"\r\n" * 500) if isinstance(one, bytes))
        assert given >= 900
        assert len(reader._buffer) < 100


HEAD = b'Content-Disposition: form-data; name="file"; filename="x"'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        WHOLE[:-20],
        b"x" * 5000,
        b"--" + BOUNDARY + b"x\r\n" + HEAD + b"\r\n\r\n",
        b"--" + BOUNDARY + b" " * 5000,
        b"--" + BOUNDARY + b"\r\n" + b"a: b\r\n" * MAX_HEADER_BYTES,
        form((b"Content-Type: text/plain", b"x")),
        form((b"Content-Disposition: attachment; name=file", b"x")),
        form((b"Content-Disposition: form-data; filename=x", b"x")),
        form((b'Content-Disposition: form-data; name="\xff"', b"x")),
        form((b"", b"x")),
        form(*[(HEAD, b"x")] * (MAX_FIELDS + 1)),
    ],
)
def test_what_is_no_form_is_refused(data: bytes) -> None:
    for cut in (0, len(data) // 2, len(data)):
        with pytest.raises(ApiError) as caught:
            read(in_pieces(data, cut))
        assert caught.value.status == 400


def test_what_divides_the_parts() -> None:
    assert boundary_of(b'Multipart/Form-Data; charset=utf-8; boundary="a b"') == b"a b"
    assert boundary_of(b"multipart/form-data;boundary=abc; x=y") == b"abc"
    for kind, status in (
        (b"", 415),
        (b"application/json", 415),
        (b"multipart/mixed; boundary=x", 415),
        (b"multipart/form-data", 400),
        (b"multipart/form-data; boundary=" + b"x" * 71, 400),
        (b'multipart/form-data; boundary=""', 400),
    ):
        with pytest.raises(ApiError) as caught:
            boundary_of(kind)
        assert caught.value.status == status
