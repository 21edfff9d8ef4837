"""The worker as a process: it says when it is ready, survives any frame, and never outlives its server."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from chairlift.wire import (
    Abort,
    Add,
    Drain,
    Failed,
    FromWorker,
    Ready,
    Refused,
    Step,
    ToWorker,
    decode_from_worker,
    encode,
)
from chairlift.worker.process import EXIT_CANNOT_START, EXIT_DEAD, EXIT_OK
from fakes import expected
from worker.running import request
from worker.test_inlet import mutants

TIMEOUT_S = 20.0
FAKE = Path(__file__).with_name("fake_worker.py")


def finished(message: FromWorker) -> set[int]:
    """The requests of which a choice is over with this message."""
    return {finish.id for finish in message.finishes} if isinstance(message, Step) else set()


class Worker:
    """The server's side of a worker on a fake device."""

    def __init__(self, fault: str = "") -> None:
        self.sock, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, str(FAKE), str(theirs.fileno()), fault]
            self.process = subprocess.Popen(
                command, pass_fds=(theirs.fileno(),), stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        self.sock.settimeout(TIMEOUT_S)
        self.stream = self.sock.makefile("rb")

    def send(self, *messages: ToWorker) -> None:
        """All of them at once, so that none comes after what an earlier one brings about."""
        self.sock.sendall(b"".join(encode(message) for message in messages))

    def receive(self) -> FromWorker | None:
        try:
            header = self.stream.read(4)
        except ConnectionResetError:
            return None  # it closed with something of ours unread
        return decode_from_worker(self.stream.read(int.from_bytes(header, "little"))) if header else None

    def until(self, holds: Callable[[FromWorker], bool]) -> list[FromWorker]:
        """Everything up to the first message for which this holds."""
        messages: list[FromWorker] = []
        while (message := self.receive()) is not None:
            messages.append(message)
            if holds(message):
                return messages
        pytest.fail("the worker closed before it sent what was expected")

    def generate(self, request_id: int) -> list[int]:
        """The tokens of one request, served now."""
        self.send(Add(request(request_id)))
        tokens: list[int] = []
        for message in self.until(lambda message: request_id in finished(message)):
            if isinstance(message, Step):
                tokens += [token for i, token in zip(message.ids, message.tokens, strict=True) if i == request_id]
        return tokens

    def exit_status(self) -> int:
        return self.process.wait(TIMEOUT_S)

    def close(self) -> None:
        self.stream.close()
        self.sock.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def start(fault: str = "") -> Worker:
        workers.append(Worker(fault))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()
        worker.process.kill()
        worker.process.communicate()


Start = Callable[..., Worker]


def test_from_ready_to_drained(start: Start) -> None:
    worker = start()
    ready = worker.receive()
    assert isinstance(ready, Ready)
    assert (ready.model_name, ready.num_blocks, ready.block_size, ready.max_num_seqs) == ("fake", 256, 4, 8)
    assert ready.resident_bytes > 1 << 20
    assert worker.generate(1) == expected(request(1), 5)
    worker.send(Add(request(2)), Drain(), Add(request(3)))
    messages: list[FromWorker] = []
    while (message := worker.receive()) is not None:
        messages.append(message)
    assert [message.id for message in messages if isinstance(message, Refused)] == [3]
    assert [i for message in messages for i in finished(message)] == [2]
    assert worker.exit_status() == EXIT_OK


def test_a_drain_before_it_is_ready(start: Start) -> None:
    worker = start()
    worker.send(Drain())
    assert isinstance(worker.receive(), Ready)
    assert worker.exit_status() == EXIT_OK


def test_nothing_is_written_to_standard_output(start: Start) -> None:
    worker = start()
    worker.receive()
    worker.send(Drain())
    output, errors = worker.process.communicate(timeout=TIMEOUT_S)
    assert (output, errors) == (b"", b"")


@pytest.mark.parametrize("fault", ["", "slow-load", "hang"])
def test_it_ends_when_its_server_is_gone(start: Start, fault: str) -> None:
    worker = start(fault)
    if fault != "slow-load":
        worker.receive()
        worker.send(Add(request(1)), Add(request(2, max_tokens=100)))
    worker.close()
    assert worker.exit_status() == EXIT_DEAD


def test_it_ends_when_its_server_is_killed(tmp_path: Path) -> None:
    """A real parent, killed: the kernel closes its end, whatever it was doing."""
    code = (
        "import socket, subprocess, sys, time\n"
        "ours, theirs = socket.socketpair()\n"
        "child = subprocess.Popen([sys.executable, sys.argv[1], str(theirs.fileno())], pass_fds=(theirs.fileno(),))\n"
        "theirs.close()\n"
        "ours.recv(1, socket.MSG_PEEK)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(FAKE)], stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        pidfd = os.pidfd_open(pid)
        parent.kill()
    with os.fdopen(pidfd), selectors.DefaultSelector() as selector:
        selector.register(pidfd, selectors.EVENT_READ)
        assert selector.select(TIMEOUT_S), "the worker outlived its server"


@pytest.mark.parametrize(
    ("fault", "status", "message"),
    [
        ("no-model", EXIT_CANNOT_START, "no such model"),
        ("no-memory", EXIT_CANNOT_START, "not enough memory: 1 TiB"),
        ("bug", EXIT_CANNOT_START, "RuntimeError: a fault of ours"),
    ],
)
def test_it_says_why_it_cannot_start(start: Start, fault: str, status: int, message: str) -> None:
    worker = start(fault)
    failed = worker.receive()
    assert isinstance(failed, Failed)
    assert message in failed.message
    assert worker.receive() is None
    assert worker.exit_status() == status


def test_it_says_why_it_cannot_go_on(start: Start) -> None:
    worker = start("broken")
    worker.receive()
    worker.send(Add(request(1)))
    messages = worker.until(lambda message: isinstance(message, Failed))
    assert isinstance(messages[-1], Failed)
    assert "a fault of ours" in messages[-1].message
    assert worker.exit_status() == EXIT_DEAD


def test_ctrl_c_is_not_its_business_and_sigterm_is(start: Start) -> None:
    worker = start()
    worker.receive()
    worker.process.send_signal(signal.SIGINT)
    assert worker.generate(1) == expected(request(1), 5)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.exit_status() == -signal.SIGTERM


@pytest.mark.parametrize("count", [4_000, pytest.param(200_000, marks=pytest.mark.long)])
def test_frames_that_make_no_sense_change_nothing(start: Start, count: int) -> None:
    worker = start()
    worker.receive()
    random = Random(7)
    for body in mutants(5, count):
        worker.sock.sendall(len(body).to_bytes(4, "little") + body)
    worker.send(*(Abort(random.randrange(1 << 63)) for _ in range(50)), Abort(7))
    assert worker.process.poll() is None
    assert worker.generate(1000) == expected(request(1000), 5)
    worker.close()
    _, errors = worker.process.communicate(timeout=TIMEOUT_S)
    assert errors.count(b"\n") <= 10
    assert b"Traceback" not in errors
