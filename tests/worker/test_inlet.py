"""Reading commands: what is wrong is named and passed over, never stored, never fatal."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from random import Random

import msgspec
import pytest

from chairlift.core.types import Request, SamplingParams
from chairlift.wire import MAX_FRAME_BYTES, Abort, Add, Drain, Refused, ToWorker, encode
from chairlift.worker.inlet import read_commands


def read(*pieces: bytes) -> list[ToWorker | Refused | ValueError]:
    """What comes out when these bytes go in and the stream then ends."""
    ours, theirs = socket.socketpair()

    def write() -> None:
        with theirs:
            for piece in pieces:
                theirs.sendall(piece)

    writer = threading.Thread(target=write)
    writer.start()
    with ours:
        got = list(read_commands(ours))
    writer.join()
    return got


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + body


def packed(content: object) -> bytes:
    return frame(msgspec.msgpack.encode(content))


ADD = Add(Request(7, [1, 2, 3], SamplingParams(stop=("x",), logit_bias=((4, 1.5),)), n=2, salt=b"s"))


def test_commands_arrive_as_they_were_sent() -> None:
    commands: list[ToWorker] = [ADD, Abort(7), Drain()]
    assert read(*map(encode, commands)) == commands


def test_pieces_of_any_size_make_the_same_commands() -> None:
    stream = encode(ADD) + encode(Abort(7)) + encode(Drain())
    assert read(*(stream[i : i + 1] for i in range(len(stream)))) == [ADD, Abort(7), Drain()]


@pytest.mark.parametrize("cut", [1, 3, 4, 20])
def test_a_stream_that_ends_within_a_frame_gives_nothing_more(cut: int) -> None:
    assert read(encode(Abort(1)), encode(ADD)[:cut]) == [Abort(1)]


@pytest.mark.parametrize(
    "bad",
    [
        frame(b""),
        frame(b"\xc1"),
        frame(b"\x91" * 5000),
        packed(None),
        packed([]),
        packed(["nonsense", 1]),
        packed(["add"]),
        packed(["add", 5]),
        packed(["add", {"id": "seven"}]),
        packed(["add", {"id": True}]),
        packed(["abort", "x"]),
        packed(["abort", 1.5]),
        packed({"type": "abort", "id": 1}),
    ],
)
def test_what_is_no_command_is_named_and_passed_over(bad: bytes) -> None:
    first, second = read(bad, encode(Abort(3)))
    assert isinstance(first, ValueError)
    assert second == Abort(3)


@pytest.mark.parametrize(
    ("params", "param"),
    [({"temperature": -1.0}, "temperature"), ({"temperature": "hot"}, None), ({"max_tokens": 0}, "max_tokens")],
)
def test_an_add_that_makes_no_sense_is_refused_by_its_id(params: dict[str, object], param: str | None) -> None:
    content = ["add", {"id": 9, "prompt": [1], "params": params}]
    (refused,) = read(packed(content))
    assert isinstance(refused, Refused)
    assert (refused.id, refused.param, refused.never) == (9, param, False)


def test_a_promised_size_costs_no_memory() -> None:
    size = MAX_FRAME_BYTES + 1000
    first, second = read(size.to_bytes(4, "little"), bytes(size), encode(Abort(1)))
    assert isinstance(first, ValueError)
    assert second == Abort(1)


def mutated(random: Random, body: bytes) -> bytes:
    changed = bytearray(body)
    for _ in range(random.randint(1, 6)):
        kind = random.randrange(4)
        at = random.randrange(len(changed)) if changed else 0
        if kind == 0 and changed:
            changed[at] = random.randrange(256)
        elif kind == 1:
            changed[at:at] = random.randbytes(random.randint(1, 5))
        elif kind == 2:
            del changed[at : at + random.randint(1, 5)]
        else:
            changed[at:at] = changed[: random.randint(0, 20)]
    return bytes(changed)


def mutants(seed: int, count: int) -> Iterator[bytes]:
    """Bodies that are nearly commands, or nothing at all."""
    random = Random(seed)
    bodies = [encode(command)[4:] for command in (ADD, Abort(7))]
    for _ in range(count):
        if random.random() < 0.2:
            yield random.randbytes(random.randint(0, 60))
        else:
            yield mutated(random, random.choice(bodies))


def test_mutated_frames_never_end_the_stream() -> None:
    bodies = list(mutants(1, 20_000))
    got = read(*(frame(body) for body in bodies), encode(Drain()))
    assert len(got) == len(bodies) + 1
    assert got[-1] == Drain()
    assert sum(isinstance(each, ValueError | Refused) for each in got) > 10_000
