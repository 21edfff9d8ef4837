"""Health under the names of others: what probes are told while a server loads, serves, drains and loses its engine."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator

import pytest

from chairlift import __version__
from server.fake_worker import DIE, FakeOptions
from server.running import RunningServer, running_server, until
from server.served import Served, served

READY, NOT_READY = (200, {"ready": True}), (503, {"ready": False})
PROBES = ("/ping", "/v2/health/ready", "/v2/models/fake/ready")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(served_model_names=("fake", "org/fake")) as running:
        yield running


def test_a_server_that_serves_is_live_and_ready_by_every_name(server: RunningServer) -> None:
    assert server.json("GET", "/v2/health/live") == (200, {"live": True})
    for path in (*PROBES, "/v2/models/org/fake/ready", "/v2/models/org%2Ffake/ready"):
        assert server.json("GET", path) == READY
        assert server.request("HEAD", path)[::2] == (200, b"")


def test_what_server_and_model_are(server: RunningServer) -> None:
    assert server.json("GET", "/v2") == (200, {"name": "chairlift", "version": __version__, "extensions": []})
    status, told = server.json("GET", "/v2/models/org%2Ffake")
    assert status == 200
    assert told == {"name": "org/fake", "platform": "chairlift", "versions": ["1"], "inputs": [], "outputs": []}


@pytest.mark.parametrize("name", ["other", "other/ready", "", "/ready", "fake/versions/1", "fake/infer", "FAKE/ready"])
def test_other_models_are_not_there(server: RunningServer, name: str) -> None:
    status, answer = server.json("GET", f"/v2/models/{name}")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


def test_one_that_drains_is_live_and_not_ready() -> None:
    with running_server() as server:
        server.app.draining = True
        assert server.json("GET", "/v2/health/live") == (200, {"live": True})
        for path in PROBES:
            assert server.json("GET", path) == NOT_READY


def test_one_that_lost_its_engine_is_live_and_not_ready() -> None:
    with running_server(FakeOptions(step_s=0.001)) as server:
        assert server.refused("/v1/completions", {"prompt": DIE})[0] == 503
        assert server.json("GET", "/v2/health/live") == (200, {"live": True})
        for path in PROBES:
            status, headers, _ = server.request("GET", path)
            assert status == 503 and int(headers["retry-after"]) > 0


def test_one_that_loads_is_live_and_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    with served({"load_s": 60.0}, wait=False, port=port) as server:
        server.port = port
        until(lambda: is_listening(server))
        assert server.get("/v2/health/live") == (200, {"live": True})
        assert server.get("/v2/health/ready") == NOT_READY
        assert server.get("/v2/models/fake/ready") == NOT_READY
        server.tell(signal.SIGTERM)  # or its worker would go on loading
        assert server.status() == 0


def is_listening(server: Served) -> bool:
    try:
        return server.get("/v2/health/live")[0] == 200
    except OSError:
        return False
