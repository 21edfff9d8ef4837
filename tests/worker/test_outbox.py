"""The outbox: nothing is lost or reordered, and a reader that does not read costs memory only, up to a limit."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from chairlift.core.errors import EngineDead
from chairlift.core.types import EngineStats, TokenLogprob
from chairlift.wire import FromWorker, Refused, Step, decode_from_worker
from chairlift.worker.outbox import MAX_MERGED, Outbox, merged

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def step(number: int, num_tokens: int = 1) -> Step:
    stats = EngineStats(number, 0, 0, 0, 0, 0, 0)
    return Step([number] * num_tokens, [0] * num_tokens, list(range(num_tokens)), [], [], [], [], stats, float(number))


def read_frames(sock: socket.socket) -> Iterator[FromWorker]:
    with sock.makefile("rb") as stream:
        while header := stream.read(4):
            yield decode_from_worker(stream.read(int.from_bytes(header, "little")))


def received(sock: socket.socket) -> list[Step]:
    return [message for message in read_frames(sock) if isinstance(message, Step)]


def start(outbox: Outbox) -> threading.Thread:
    thread = threading.Thread(target=outbox.run, daemon=True)
    thread.start()
    return thread


def test_a_reader_that_keeps_up_gets_a_frame_for_each_message_without_the_writer(pair: Pair) -> None:
    outbox = Outbox(pair[0])
    for i in range(10):
        outbox.put(step(i))
    assert outbox.close(0)
    pair[0].close()
    assert [message.ids for message in received(pair[1])] == [[i] for i in range(10)]


def test_a_slow_reader_gets_everything_in_order_in_fewer_frames(pair: Pair) -> None:
    outbox = Outbox(pair[0])
    start(outbox)
    for i in range(5_000):
        outbox.put(step(i, num_tokens=64))  # far more than a socket holds; nobody reads yet
    steps: list[Step] = []
    reader = threading.Thread(target=lambda: steps.extend(received(pair[1])))
    reader.start()
    assert outbox.close(20)
    pair[0].shutdown(socket.SHUT_WR)
    reader.join(20)
    assert [i for message in steps for i in message.ids] == [i for i in range(5_000) for _ in range(64)]
    assert [t for message in steps for t in message.tokens] == list(range(64)) * 5_000
    assert len(steps) < 2_500
    assert max(len(message.tokens) for message in steps) <= MAX_MERGED
    assert [message.now for message in steps] == sorted(message.now for message in steps)


def test_other_messages_keep_their_place_among_merged_steps(pair: Pair) -> None:
    outbox = Outbox(pair[0])
    expected_ids = []
    for i in range(3_000):
        message = Refused(i, "x" * 200, None, False) if i % 100 == 50 else step(i)
        expected_ids.append(i)
        outbox.put(message)
    start(outbox)
    seen: list[int] = []

    def read() -> None:
        for message in read_frames(pair[1]):
            seen.extend(
                message.ids if isinstance(message, Step) else [message.id] if isinstance(message, Refused) else []
            )

    reader = threading.Thread(target=read)
    reader.start()
    assert outbox.close(20)
    pair[0].shutdown(socket.SHUT_WR)
    reader.join(20)
    assert seen == expected_ids


def test_a_reader_that_never_reads_ends_the_engine_before_the_memory_is_full(pair: Pair) -> None:
    outbox = Outbox(pair[0], max_waiting=10_000)
    with pytest.raises(EngineDead):
        for i in range(100_000):
            outbox.put(step(i, num_tokens=100))
    assert not outbox.close(0.05)


def test_a_reader_that_is_gone_is_no_error_here(pair: Pair) -> None:
    outbox = Outbox(pair[0])
    writer = start(outbox)
    for i in range(3_000):
        outbox.put(step(i, num_tokens=64))
    pair[1].close()
    for i in range(3_000):
        outbox.put(step(i))
    writer.join(20)
    assert not writer.is_alive()
    assert not outbox.close(1)


def test_merging_keeps_everything_and_the_newest_counts() -> None:
    first, second = step(1, 2), step(2, 3)
    first.logprobs.append((1, 0, TokenLogprob(5, -0.5, 1)))
    second.prompt_logprobs.append((2, 0, [TokenLogprob(6, -1.0, 2)]))
    both = merged(first, second)
    assert both.ids == [1, 1, 2, 2, 2]
    assert both.tokens == [0, 1, 0, 1, 2]
    assert len(both.logprobs) == len(both.prompt_logprobs) == 1
    assert (both.stats.num_running, both.now) == (2, 2.0)
