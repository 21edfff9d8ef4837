"""A server started for the length of a measurement."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence

from chairlift.bench.http_client import HttpClient
from chairlift.bench.openai_client import wait_until_ready
from chairlift.core.errors import ChairliftError

HOST = "127.0.0.1"


def free_port() -> int:
    """A TCP port on the loopback address that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def served(
    command: Sequence[str], *, clock: Callable[[], float], ready_timeout_s: float, stop_timeout_s: float = 30.0
) -> AsyncIterator[str]:
    """The base URL of a server that runs meanwhile: `command` with `--host` and `--port` at its end.

    It gets SIGTERM afterwards, and SIGKILL if that does not end it in time.

    Raises:
        ChairliftError: it did not become ready; the end of what it printed is in the message.
    """
    port = free_port()
    url = f"http://{HOST}:{port}"
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *command, "--host", HOST, "--port", str(port), stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
        )
        http = HttpClient(url, clock=clock, timeout_s=5.0)
        try:
            try:
                await wait_until_ready(http, ready_timeout_s, lambda: process.returncode is None)
            except ChairliftError as error:
                log.seek(0)
                tail = log.read()[-2000:].decode(errors="replace").strip()
                raise ChairliftError(f"{error}\n{tail}") from error
            finally:
                await http.close()
            yield url
        finally:
            await _stop(process, stop_timeout_s)


async def _stop(process: asyncio.subprocess.Process, timeout_s: float) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), timeout_s)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
