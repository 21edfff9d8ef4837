"""Files of requests for tests, and ways to follow what becomes of them."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from server.running import TIMEOUT_S, until

ENDED = ("completed", "failed", "expired", "cancelled")
BOUNDARY = "a-boundary"


def follow(condition: Callable[[], bool], timeout_s: float = 4 * TIMEOUT_S) -> None:
    """Wait for what a server does, looking rarely enough to leave it the processor."""
    until(condition, timeout_s, look_s=0.02)


def line(custom_id: object, url: str = "/v1/completions", **body: Any) -> str:
    """A line of a file of requests."""
    content = {"prompt": f"prompt of {custom_id}", "max_tokens": 5} | body
    return json.dumps({"custom_id": str(custom_id), "method": "POST", "url": url, "body": content})


def form(content: bytes | None, *, purpose: str | None = "batch", more: bytes = b"") -> tuple[bytes, dict[str, str]]:
    """A form that sends a file, and its headers."""
    parts = [more]
    if purpose is not None:
        parts.append(f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n'.encode())
    if content is not None:
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
        parts += [head.encode(), content, b"\r\n"]
    parts.append(f"--{BOUNDARY}--\r\n".encode())
    return b"".join(parts), {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


class Asked(Protocol):
    """A server, in this process or in another."""

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]: ...

    def json(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]: ...


class Remote:
    """A server that is a process of its own."""

    def __init__(self, port: int) -> None:
        self.port = port

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        with contextlib.closing(connection):
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()

    def json(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        status, _, content = self.request(method, path, body, headers)
        return status, json.loads(content)


class Asking:
    """Somebody who sends files and batches to a server."""

    def __init__(self, server: Asked, key: str | None = None) -> None:
        self.server = server
        self.headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    def upload(self, lines: Iterable[str] | bytes) -> str:
        """The id of a file with these lines."""
        content = lines if isinstance(lines, bytes) else "".join(one + "\n" for one in lines).encode()
        body, headers = form(content)
        status, answer = self.server.json("POST", "/v1/files", body, self.headers | headers)
        assert status == 200, answer
        return str(answer["id"])

    def begin(self, lines: Iterable[str] | bytes, endpoint: str = "/v1/completions", **fields: Any) -> str:
        """The id of a batch of these lines."""
        body = {"input_file_id": self.upload(lines), "endpoint": endpoint, "completion_window": "24h"} | fields
        status, answer = self.server.json("POST", "/v1/batches", body, self.headers)
        assert status == 200, answer
        assert answer["status"] == "validating"
        return str(answer["id"])

    def get(self, path: str) -> Any:
        status, answer = self.server.json("GET", path, None, self.headers)
        assert status == 200, answer
        return answer

    def batch(self, batch_id: str) -> Any:
        return self.get(f"/v1/batches/{batch_id}")

    def ended(self, batch_id: str) -> Any:
        """A batch, once it has ended."""
        follow(lambda: self.batch(batch_id)["status"] in ENDED)
        return self.batch(batch_id)

    def content(self, file_id: str) -> bytes:
        status, _, content = self.server.request("GET", f"/v1/files/{file_id}/content", None, self.headers)
        assert status == 200, content
        return content

    def results(self, file_id: str | None) -> dict[str, Any]:
        """The lines of a file of results, by what they are results of: each once."""
        if file_id is None:
            return {}
        found = [json.loads(one) for one in self.content(file_id).splitlines()]
        by_id = {one["custom_id"]: one for one in found}
        assert len(by_id) == len(found)
        return by_id
