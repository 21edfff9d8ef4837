"""Sending frames without ever making the engine wait for whoever reads them.

The common case costs one system call on the caller's thread: the socket has room. When it has none, messages wait
here, steps merge into one frame, and a writer thread sends as the reader makes room.
"""

from __future__ import annotations

import socket
import threading
from collections import deque

import msgspec

from chairlift.core.errors import EngineDead
from chairlift.wire import FromWorker, Step, encode

MAX_MERGED = 1 << 14
"""Most entries of a merged step: keeps a frame well below the frame limit and a reader's pause short."""

MAX_WAITING = 1 << 20
"""Most entries that wait for a reader: a quarter of an hour of a small model's output, some tens of megabytes."""


class Outbox:
    """Frames on their way to one reader, in order; `run` is the writer thread's body."""

    def __init__(self, sock: socket.socket, *, max_waiting: int = MAX_WAITING) -> None:
        self._sock = sock
        self._max_waiting = max_waiting
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[FromWorker] = deque()
        self._num_waiting = 0
        self._rest = memoryview(b"")
        self._closing = False
        self._broken = False

    def put(self, message: FromWorker) -> None:
        """Send, or keep for the writer. Takes over the message's lists.

        Once the reader is gone messages are dropped: the end of the stream is noticed where it is read.

        Raises:
            EngineDead: the reader has not read for so long that keeping more would fill the memory.
        """
        with self._lock:
            if self._broken or self._closing:
                return
            if not self._rest and not self._waiting:
                self._send(message)
            else:
                self._keep(message)

    def close(self, timeout_s: float) -> bool:
        """Accept nothing more and wait until everything was sent; False if that took too long."""
        with self._lock:
            self._closing = True
            self._changed.notify_all()
            return self._changed.wait_for(
                lambda: self._broken or not (self._rest or self._waiting), timeout=timeout_s
            ) and (not self._broken)

    def run(self) -> None:
        """Send what waits, until closed and empty, or until the reader is gone."""
        while True:
            with self._lock:
                self._changed.wait_for(lambda: self._rest or self._waiting or self._closing or self._broken)
                if self._broken or not (self._rest or self._waiting):
                    return
                if not self._rest:
                    message = self._waiting.popleft()
                    self._num_waiting -= _num_entries(message)
                    self._rest = memoryview(encode(message))
                rest = self._rest
            try:
                self._sock.sendall(rest)
            except OSError:
                self._break()
                return
            with self._lock:
                self._rest = memoryview(b"")
                self._changed.notify_all()

    def _send(self, message: FromWorker) -> None:
        frame = memoryview(encode(message))
        try:
            sent = self._sock.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._broken = True
            self._changed.notify_all()
            return
        if sent < len(frame):
            self._rest = frame[sent:]
            self._changed.notify_all()

    def _keep(self, message: FromWorker) -> None:
        num_entries = _num_entries(message)
        self._num_waiting += num_entries
        if self._num_waiting > self._max_waiting:
            raise EngineDead("the server does not read what the engine sends")
        last = self._waiting[-1] if self._waiting else None
        if (
            isinstance(last, Step)
            and isinstance(message, Step)
            and last.engine == message.engine
            and _num_entries(last) + num_entries <= MAX_MERGED
        ):
            self._waiting[-1] = merged(last, message)
            self._num_waiting -= 1
        else:
            self._waiting.append(message)
        self._changed.notify_all()

    def _break(self) -> None:
        with self._lock:
            self._broken = True
            self._waiting.clear()
            self._rest = memoryview(b"")
            self._changed.notify_all()


def merged(first: Step, second: Step) -> Step:
    """Both steps as one, with the counts of the second; the first one's lists grow."""
    first.ids.extend(second.ids)
    first.choices.extend(second.choices)
    first.tokens.extend(second.tokens)
    first.logprobs.extend(second.logprobs)
    first.prompt_logprobs.extend(second.prompt_logprobs)
    first.joined.extend(second.joined)
    first.finishes.extend(second.finishes)
    first.vectors.extend(second.vectors)
    return msgspec.structs.replace(first, stats=second.stats, now=second.now)


def _num_entries(message: FromWorker) -> int:
    """Size of a message in the unit of a token; one with its log-probabilities is a few of them."""
    if not isinstance(message, Step):
        return 1
    num_logprobs = len(message.logprobs) + sum(len(scored) for _, _, scored in message.prompt_logprobs)
    num_vector_bytes = sum(len(vector) for _, vector in message.vectors)
    return 1 + len(message.tokens) + 4 * len(message.finishes) + 16 * num_logprobs + num_vector_bytes // 16
