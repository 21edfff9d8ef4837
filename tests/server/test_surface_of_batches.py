"""Every limit on the routes of files and batches, and what a file may be (reliability Q1, E1)."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from server.batch_files import BOUNDARY, form, line
from server.batch_files import Asking as Sender
from server.fake_worker import FakeOptions
from server.limits import CONTEXT, MAX_BODY_BYTES
from server.running import RunningServer, running_server, until
from server.surface import FILE_ID, ROUTES
from server.test_bounds import check_bounds
from server.test_surface import Asking, check_limits, check_numbers

MAX_FILE_BYTES = 2_000_000
NOTHING = {"model": "no model is named here"}
KEY = "key-of-anna"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = str(tmp_path_factory.mktemp("batches"))
    options = FakeOptions(max_model_len=CONTEXT, heartbeat_s=0.05)
    with running_server(
        options,
        batch_dir=folder,
        max_body_bytes=MAX_BODY_BYTES,
        max_batch_file_bytes=MAX_FILE_BYTES,
        max_batch_bytes=20_000_000,
        log_requests=False,
    ) as running:
        yield running
        until(lambda: running.num_tasks() <= 0)


@pytest.fixture
def sender(server: RunningServer) -> Sender:
    return Sender(server)


def test_q1_every_limit_holds_on_batches(server: RunningServer, sender: Sender) -> None:
    listed = ROUTES["/v1/batches"]
    assert listed.body is not None
    file_id = sender.upload([line("a")])
    asking = Asking(server.port, "/v1/batches", listed)
    here = replace(listed, body=listed.body | {"input_file_id": file_id}, exempt=NOTHING)
    assert FILE_ID not in str(here.body)
    for body in here.bodies().values():
        assert server.json("POST", "/v1/batches", body)[0] == 200
    check_bounds(server.app.document(), asking, here)
    check_limits(asking, here)
    check_numbers(asking, here)
    asking.connection.close()
    store = server.store
    assert store is not None
    until(lambda: not store.unfinished())


def uploads(server: RunningServer, content: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    with contextlib.closing(connection):
        # It may be turned away before it has sent everything; the answer is there all the same.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request("POST", "/v1/files", content, headers)
        response = connection.getresponse()
        return response.status, response.read()


@pytest.mark.parametrize(
    ("more", "param"),
    [
        (f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n', "purpose"),
        (f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="b"\r\n\r\nx\r\n', "file"),
        (f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n', "file"),
        (f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="expires_after[seconds]"\r\n\r\n1\r\n',
         "expires_after[seconds]"),
    ],
)  # fmt: skip
def test_fields_of_a_form_that_make_no_sense(server: RunningServer, more: str, param: str) -> None:
    body, headers = form(b"x", more=more.encode())
    status, answer = server.json("POST", "/v1/files", body, headers)
    assert (status, answer["error"]["param"]) == (400, param)


def test_files_that_are_not_taken_leave_nothing(server: RunningServer, sender: Sender) -> None:
    good, headers = form(b"x\n")
    before = files_of(server)
    for body, status in (
        (form(None)[0], 400),
        (form(b"x", purpose=None)[0], 400),
        (form(b"x", purpose="assistants")[0], 400),
        (form(b"x", purpose="x" * 5000)[0], 400),
        (form(b"")[0], 400),
        (good[:-10], 400),
        (b"x" * 100_000, 400),
        (form(b"x" * (MAX_FILE_BYTES + 1))[0], 413),
        (form(b"x" * (2 * MAX_FILE_BYTES))[0], 413),
    ):
        assert uploads(server, body, headers)[0] == status
    for kind in ("application/json", "multipart/form-data", "multipart/mixed; boundary=x", ""):
        assert uploads(server, good, {"Content-Type": kind})[0] in (400, 415)
    assert uploads(server, good, headers | {"Content-Encoding": "gzip"})[0] == 415
    until(lambda: files_of(server) == before)
    assert sender.content(sender.upload(b"y" * MAX_FILE_BYTES)) == b"y" * MAX_FILE_BYTES


def files_of(server: RunningServer) -> set[str]:
    folder = Path(server.options.batch_dir or "") / "files"
    return {path.name for path in folder.iterdir()}


def test_n1_names_in_the_path_are_ids_or_nothing(server: RunningServer) -> None:
    names = [
        "../lock",
        "..%2flock",
        "%2e%2e/lock",
        "/etc/passwd",
        "file-" + "A" * 24,
        "file-" + "0" * 23,
        ".",
        "\\lock",
    ]
    for name in names:
        for path in (f"/v1/files/{name}", f"/v1/files/{name}/content", f"/v1/batches/{name}"):
            status, answer = server.json("GET", path)
            assert status == 404, path
            assert "lock" not in str(answer)
        assert server.json("DELETE", f"/v1/files/{name}")[0] == 404


def test_a_name_of_a_file_is_only_shown(server: RunningServer) -> None:
    for name in ("../../etc/cron.d/x", "x" * 1000, "a\tb", "ü", ""):
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\nx\r\n'
        body, headers = form(None, more=head.encode())
        status, answer = server.json("POST", "/v1/files", body, headers)
        assert status == 200
        assert len(answer["filename"]) <= 255
        assert answer["filename"].isprintable()


def test_a_client_that_leaves_in_the_middle_leaves_nothing(server: RunningServer) -> None:
    before = files_of(server)
    body, headers = form(b"x" * 1_500_000)
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    for cut in (200, 100_000, 1_400_000):
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall(f"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode())
            sock.sendall(body[:cut])
    until(lambda: server.num_connections() == 0 and server.num_tasks() <= 0)
    assert files_of(server) == before
    store = server.store
    assert store is not None
    assert not store._coming


def test_a_large_body_is_for_files_only(server: RunningServer) -> None:
    body, headers = form(b"x" * 1_500_000)
    for method, path in (("POST", "/v1/batches"), ("POST", "/v1/completions"), ("PUT", "/v1/files")):
        status = server.request(method, path, body, headers)[0]
        assert status in (405, 413), path


def test_the_content_of_a_file_is_no_page(server: RunningServer, sender: Sender) -> None:
    file_id = sender.upload(b"<script>alert(1)</script>")
    status, headers, content = server.request("GET", f"/v1/files/{file_id}/content")
    assert (status, content) == (200, b"<script>alert(1)</script>")
    assert headers["content-type"] == "application/octet-stream"
    assert headers["content-disposition"] == "attachment"
    assert headers["x-content-type-options"] == "nosniff"
    status, headers, content = server.request("HEAD", f"/v1/files/{file_id}/content")
    assert (status, headers["content-length"], content) == (200, "25", b"")


def test_what_one_key_may_keep_is_bounded(tmp_path: Path) -> None:
    with running_server(
        batch_dir=str(tmp_path), max_batch_bytes=10_000, api_keys=(KEY, "key-of-bert"), max_batch_file_bytes=50_000
    ) as server:
        anna, bert = Sender(server, KEY), Sender(server, "key-of-bert")
        ids = [anna.upload(b"x" * 3000) for _ in range(3)]
        body, headers = form(b"x" * 3000)
        status, answer = server.json("POST", "/v1/files", body, anna.headers | headers)
        assert (status, answer["error"]["code"]) == (413, "storage_limit")
        bert.upload(b"x" * 9000)
        assert server.json("DELETE", f"/v1/files/{ids[0]}", None, anna.headers)[0] == 200
        anna.upload(b"x" * 3000)


def test_one_key_sends_a_few_files_at_a_time(server: RunningServer) -> None:
    body, headers = form(b"x" * 1000)
    connections = []
    for _ in range(4):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.putrequest("POST", "/v1/files")
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            connection.putheader(name, value)
        connection.endheaders(body[:500])
        connections.append(connection)
    store = server.store
    assert store is not None
    until(lambda: store.num_coming("") == 4)
    status, answer = server.json("POST", "/v1/files", body, headers)
    assert (status, answer["error"]["code"]) == (429, "too_many_uploads")
    for connection in connections:
        connection.send(body[500:])
        assert connection.getresponse().status == 200
        connection.close()
    assert uploads(server, body, headers)[0] == 200


def test_an_upload_that_goes_on_may_take_longer_than_a_request_and_one_that_stops_may_not(tmp_path: Path) -> None:
    with running_server(batch_dir=str(tmp_path), receive_timeout_s=0.15) as server:
        body, headers = form(b"x" * 1_000_000)
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
            head = f"Host: localhost\r\nContent-Length: {len(body)}\r\n{head}"
            sock.sendall(f"POST /v1/files HTTP/1.1\r\n{head}\r\n".encode())
            until(lambda: server.num_connections() == 1)
            connections = server.http.connections
            for start in range(0, 800_000, 100_000):
                timed = connections[0]._num_body_bytes_timed
                sock.sendall(body[start : start + 100_000])
                until(lambda timed=timed: connections[0]._num_body_bytes_timed > timed)  # type: ignore[misc]
            answer = b"".join(iter(lambda: sock.recv(1 << 16), b""))
        assert b" 408 " in answer.split(b"\r\n")[0]
