"""`chairlift serve` as a process with a worker without a model, and clients of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from server.running import TIMEOUT_S

HERE = Path(__file__).parent
LONG: dict[str, Any] = {"max_tokens": 4000, "ignore_eos": True, "stream": True}


class Served:
    """A server process and what it printed."""

    def __init__(
        self,
        worker: dict[str, Any],
        server: dict[str, Any],
        cwd: Path | None = None,
        stderr: IO[str] | None = None,
        script: str = "serve_fake.py",
        audit: Path | None = None,
    ) -> None:
        path = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = os.environ | {"PYTHONPATH": path}
        arguments = [json.dumps(worker), json.dumps({"port": 0} | server), *([] if audit is None else [str(audit)])]
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / script), *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr or subprocess.PIPE,
            text=True,
            env=environment,
            cwd=cwd,
        )
        self.said = ""
        self.port = 0

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        match = re.search(r" at https?://127\.0\.0\.1:(\d+)$", self.said.rstrip())
        assert match, (self.said, self.process.stderr and self.process.stderr.read())
        self.port = int(match[1])
        while "client.chat" not in self.said or not self.said.endswith("\n\n"):
            self.said += self.process.stdout.readline()

    def get(self, path: str) -> tuple[int, Any]:
        return self.ask("GET", path, None)

    def ask(self, method: str, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        status, content = self._answer(method, path, None if body is None else json.dumps(body), headers)
        return status, json.loads(content)

    def _answer(
        self, method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def metric(self, name: str) -> float:
        """Of the first series of this name."""
        _, content = self._answer("GET", "/metrics")
        match = re.search(rf"^{name}{{.*}} (\S+)$", content.decode(), re.MULTILINE)
        assert match, content
        return float(match[1])

    def worker_pids(self) -> list[int]:
        return children(self.process.pid)

    def tell(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def status(self) -> int:
        return self.process.wait(TIMEOUT_S)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def served(
    worker: dict[str, Any] | None = None,
    *,
    wait: bool = True,
    cwd: Path | None = None,
    stderr: IO[str] | None = None,
    script: str = "serve_fake.py",
    audit: Path | None = None,
    **server: Any,
) -> Iterator[Served]:
    running = Served(worker or {}, server, cwd, stderr, script, audit)
    try:
        if wait:
            running.wait_ready()
        yield running
    finally:
        running.close()


class Reader(threading.Thread):
    """Reads a stream to its end."""

    def __init__(self, port: int, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        self.body = body
        self.content = b""
        self.began = threading.Event()

    def run(self) -> None:
        with contextlib.closing(self.connection), contextlib.suppress(http.client.HTTPException, OSError):
            self.connection.request("POST", "/v1/completions", json.dumps(self.body))
            response = self.connection.getresponse()
            while data := response.read1(1 << 16):
                self.content += data
                self.began.set()


def readers(server: Served, count: int, *, wait: bool = True, **fields: Any) -> list[Reader]:
    """Requests in flight; each has begun to be answered, if that is waited for."""
    threads = [Reader(server.port, {"prompt": f"reader {i}"} | LONG | fields) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        assert not wait or thread.began.wait(TIMEOUT_S)
    return threads


def children(pid: int) -> list[int]:
    """Process numbers of those that a process began."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
