"""Listening on a path in the file system, open to its owner alone."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from chairlift.core.errors import InvalidOption

_ONLY_THE_OWNER = 0o177
_PROBE_TIMEOUT_S = 1.0


def bind_path(path: str, backlog: int) -> socket.socket:
    """A listening socket at `path`. A socket that a server left behind when it was killed is replaced.

    Raises:
        InvalidOption: somebody listens there, something else lies there, or nothing can be made there.
    """
    _clear(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(_ONLY_THE_OWNER)
    try:
        sock.bind(path)
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise InvalidOption(f"cannot listen on {path}: {error.strerror or error}") from None
    finally:
        os.umask(before)
    return sock


@contextlib.contextmanager
def removed_at_end(path: str | None) -> Iterator[None]:
    """Take the socket at `path` away at the end, unless another one lies there by then."""
    if path is None:
        yield
        return
    ours = Path(path).stat().st_ino
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if Path(path).stat().st_ino == ours:
                Path(path).unlink()


def _clear(path: str) -> None:
    """Remove what a killed server left; anything else is not ours to remove."""
    try:
        mode = Path(path).lstat().st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise InvalidOption(f"cannot listen on {path}: there is a file that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):
                Path(path).unlink()
        except OSError:
            return
        else:
            raise InvalidOption(f"cannot listen on {path}: Address already in use")
