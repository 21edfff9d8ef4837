"""The worker process, seen from its parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import IO, Self

WorkerCommand = Callable[[int], Sequence[str]]
"""The command line of a worker that speaks frames on the given inherited descriptor."""

_POLL_S = 0.02
MAX_LINE_BYTES = 8 << 10
"""A longer line of a worker is taken for several."""


class WorkerProcess:
    """A child that holds one end of a nameless socket pair; the other end is `sock`.

    The child is in a process group of its own, so that Ctrl-C in a terminal reaches this process only, which decides
    what it means. If this process dies in any way, its end of the pair closes and the child notices; a child that hangs
    is ended by the system (see `worker/process.py`).

    With `tell`, each line that it writes to standard error goes there, on a thread, instead of to this process's own.
    """

    def __init__(self, command: WorkerCommand, tell: Callable[[str], None] | None = None) -> None:
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            fd = theirs.fileno()
            try:
                self._child = subprocess.Popen(
                    command(fd),
                    pass_fds=(fd,),
                    stdin=subprocess.DEVNULL,
                    stderr=None if tell is None else subprocess.PIPE,
                    process_group=0,
                )
            except BaseException:
                self.sock.close()
                raise
        self.sock.setblocking(False)
        if tell is not None and self._child.stderr is not None:
            threading.Thread(target=_pass_on, args=(self._child.stderr, tell), name="worker-says", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Whatever happened, no worker is left behind. Closing again changes nothing."""
        self.kill()
        self._child.wait()
        self.sock.close()

    @property
    def pid(self) -> int:
        return self._child.pid

    def kill(self) -> None:
        """End it and what it started at once. Once its exit status was read, nothing is killed: the number is free."""
        if self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)

    async def wait(self, timeout_s: float) -> int | None:
        """The exit status, or None if it still runs after `timeout_s` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while (status := self._child.poll()) is None and loop.time() < deadline:
            await asyncio.sleep(_POLL_S)
        return status

    async def end(self, timeout_s: float) -> int:
        """Wait for the exit; kill it if that takes longer than `timeout_s` seconds."""
        if (status := await self.wait(timeout_s)) is None:
            self.kill()
            return await asyncio.to_thread(self._child.wait)
        return status


def _pass_on(pipe: IO[bytes], tell: Callable[[str], None]) -> None:
    """Until the other end is closed, by whoever has it."""
    with pipe:
        while line := pipe.readline(MAX_LINE_BYTES):
            if text := line.decode("utf-8", "replace").rstrip():
                tell(text)
