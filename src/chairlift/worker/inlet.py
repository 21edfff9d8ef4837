"""Reading commands from the frames' socket: bounded memory, and nothing that comes in can end the process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import msgspec

from chairlift.core.errors import ChairliftError
from chairlift.wire import MAX_FRAME_BYTES, Refused, ToWorker, decode_to_worker

_HEADER_BYTES = 4
_DISCARD_BYTES = 1 << 16


def read_commands(sock: socket.socket) -> Iterator[ToWorker | Refused | ValueError]:
    """Yield what each frame says until the other side closes.

    A frame outside the schema gives a `ValueError` that says why; if it was at least an `Add` with an id, a `Refused`,
    so that whoever asked does not wait for ever. A body longer than a frame may be is passed over, never stored.
    """
    while (header := _receive(sock, _HEADER_BYTES)) is not None:
        size = int.from_bytes(header, "little")
        if size > MAX_FRAME_BYTES:
            if not _discard(sock, size):
                return
            yield ValueError(f"a frame of {size} bytes; at most {MAX_FRAME_BYTES} are allowed")
            continue
        body = _receive(sock, size)
        if body is None:
            return
        yield _decode(body)


def _decode(body: memoryview) -> ToWorker | Refused | ValueError:
    try:
        return decode_to_worker(body)
    except (msgspec.MsgspecError, ChairliftError, ValueError, RecursionError) as error:
        request_id = _asked_id(body)
        if request_id is None:
            return ValueError(f"not a command: {error}")
        param = getattr(error, "param", None)
        return Refused(request_id, str(error), param if isinstance(param, str) else None, never=False)


def _asked_id(body: memoryview) -> int | None:
    """The request id in what was meant as an `Add`; None if there is none."""
    try:
        content: Any = msgspec.msgpack.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    match content:
        case ["add", {"id": int(request_id)}, *_] if not isinstance(request_id, bool):
            return request_id
    return None


def _receive(sock: socket.socket, size: int) -> memoryview | None:
    """Exactly `size` bytes; None if the stream ends before. Memory grows with what arrives, not what is promised."""
    received = bytearray()
    while len(received) < size:
        try:
            piece = sock.recv(min(size - len(received), 1 << 20))
        except OSError:
            return None
        if not piece:
            return None
        received += piece
    return memoryview(received)


def _discard(sock: socket.socket, size: int) -> bool:
    """Read past `size` bytes; False if the stream ends before."""
    while size:
        try:
            piece = sock.recv(min(size, _DISCARD_BYTES))
        except OSError:
            return False
        if not piece:
            return False
        size -= len(piece)
    return True
