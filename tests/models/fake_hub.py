"""A hub on the loopback: the few answers that getting a model needs, with faults on demand.

Large files are on a second server, the store, to which the first redirects, as the real one does.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "a" * 40


@dataclass
class Asked:
    """A request as it came."""

    method: str
    path: str
    token: str | None
    range: str | None


@dataclass
class FakeHub:
    """`files` of one repository, `repo`, at `commit`; those in `stored` are on the store.

    `statuses` are answered instead, with a code or a message, by what the path contains; `cuts` are numbers of bytes
    after which the next answers with a body break off; while `hold` is not set, nothing is answered.
    """

    repo: str
    files: dict[str, bytes]
    stored: set[str] = field(default_factory=set)
    commit: str = COMMIT
    revisions: tuple[str, ...] = ("main",)
    statuses: dict[str, tuple[int, str]] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    spoiled: set[str] = field(default_factory=set)
    knows_ranges: bool = True
    range_shift: int = 0
    """Parts are sent that begin so many bytes after the one that was asked for."""
    surplus: bytes = b""
    """Sent after every file."""
    hold: threading.Event = field(default_factory=threading.Event)
    asked: list[Asked] = field(default_factory=list)
    asked_of_store: list[Asked] = field(default_factory=list)
    endpoint: str = ""
    store: str = ""

    def etag(self, name: str) -> str:
        data = self.files[name]
        if name in self.stored:
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def listing(self) -> dict[str, object]:
        siblings = []
        for name, data in self.files.items():
            entry: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": self.etag(name)}
            if name in self.stored:
                entry["lfs"] = {"sha256": self.etag(name), "size": len(data), "pointerSize": 130}
            siblings.append(entry)
        return {"id": self.repo, "modelId": self.repo, "sha": self.commit, "siblings": siblings}


def _handler(hub: FakeHub, *, is_store: bool) -> type[BaseHTTPRequestHandler]:
    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            seen = hub.asked_of_store if is_store else hub.asked
            seen.append(Asked(self.command, path, self.headers.get("authorization"), self.headers.get("range")))
            hub.hold.wait()
            status, code = next((fault for part, fault in hub.statuses.items() if part in path), (0, ""))
            if status:
                header = "X-Error-Message" if " " in code else "X-Error-Code"
                self.reply(status, {header: code})
            elif is_store:
                self.body(path.removeprefix("/"))
            elif path.startswith("/api/models/"):
                self.list(path.removeprefix("/api/models/"))
            else:
                repo, _, rest = path.removeprefix("/").partition("/resolve/")
                self.file(repo, rest.partition("/")[2])

        def list(self, path: str) -> None:
            repo, _, revision = path.partition("/revision/")
            if repo != hub.repo:
                self.reply(404, {"X-Error-Code": "RepoNotFound"})
            elif revision not in (hub.commit, *hub.revisions):
                self.reply(404, {"X-Error-Code": "RevisionNotFound"})
            else:
                self.reply(200, {"Content-Type": "application/json"}, json.dumps(hub.listing()).encode())

        def file(self, repo: str, name: str) -> None:
            if repo != hub.repo or name not in hub.files:
                self.reply(404, {"X-Error-Code": "EntryNotFound"})
                return
            headers = {"X-Repo-Commit": hub.commit, "ETag": f'"{hub.etag(name)}"'}
            if name in hub.stored:
                headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(len(hub.files[name]))}
                self.reply(302, {**headers, "Location": f"{hub.store}/{name}"})
            else:
                self.body(name, headers)

        def body(self, name: str, headers: dict[str, str] | None = None) -> None:
            data, status = hub.files[name], 200
            if name in hub.spoiled:
                data = bytes(len(data))
            data += hub.surplus
            asked = self.headers.get("range")
            headers = dict(headers or {})
            if asked is not None and hub.knows_ranges:
                first = int(asked.removeprefix("bytes=").removesuffix("-")) + hub.range_shift
                headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
                data, status = data[first:], 206 if first < len(data) else 416
            self.reply(status, headers, data)

        def reply(self, status: int, headers: dict[str, str], data: bytes = b"") -> None:
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            if status in (200, 206) and "Content-Type" not in headers and hub.cuts:
                self.wfile.write(data[: hub.cuts.pop(0)])
                self.close_connection = True
                return
            self.wfile.write(data)

    return Answer


@contextmanager
def running(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve a hub and its store while the block runs."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub, is_store=one)) for one in (False, True)]
    hub.endpoint, hub.store = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    hub.hold.set()
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in servers]
    for server, thread in zip(servers, threads, strict=True):
        server.daemon_threads = True
        thread.start()
    try:
        yield hub
    finally:
        hub.hold.set()
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()
