"""What a server listens on: one address, this machine's own unless it is told another (reliability A2, J3, S24)."""

from __future__ import annotations

from pathlib import Path

from server.listeners import listeners
from server.served import served


def test_s24_server_and_worker_listen_on_one_loopback_address(tmp_path: Path) -> None:
    with served(script="serve_engine.py") as server:
        assert server.get("/health")[0] == 200
        assert listeners(server.process.pid) == [f"127.0.0.1:{server.port}"]


def test_another_address_is_the_one_that_was_named() -> None:
    with served(host="0.0.0.0", api_keys=["some-key"], wait=False) as server:
        stdout = server.process.stdout
        assert stdout is not None
        port = int(stdout.readline().rsplit(":", 1)[1])
        assert listeners(server.process.pid) == [f"0.0.0.0:{port}"]
