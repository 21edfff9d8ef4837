"""Every limit on every route that reads texts for vectors, in every way of asking (reliability Q1, E1)."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from chairlift.server.embeddings import PASS_ROUTES
from chairlift.server.rerank import PAIR_ROUTES
from executors.encoders import write_encoder
from server.surface import ROUTES
from server.test_bounds import check_bounds
from server.test_openapi import check_holds
from server.test_real_model import RealServer
from server.test_surface import Asking, check_limits, check_numbers

EXEMPT = {
    "tokens": "a long word is one unknown token to this model; test_embeddings.py has texts of many",
    "body": "it is as long here as a server allows by default; test_limits.py",
}
NEEDS = {"embeddings": "bert", "labels": "bert_pair"}
OF_ENCODERS = {name: listed for name, listed in ROUTES.items() if listed.reads}
OPERATIONS = PASS_ROUTES | PAIR_ROUTES
SAMPLE = ("/v1/embeddings", "/v1/rerank", "/score")


def document(port: int) -> Any:
    """Of a server, as it tells it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", "/openapi.json")
        return json.loads(connection.getresponse().read())


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RealServer]]:
    """A server for each kind, begun when it is first needed."""
    running: dict[str, RealServer] = {}

    class Lazily(dict[str, RealServer]):
        def __missing__(self, kind: str) -> RealServer:
            folder = write_encoder(NEEDS[kind], tmp_path_factory.mktemp("models") / kind)
            running[kind] = self[kind] = RealServer(str(folder), "--embedding-max-batch-wait-ms", "0")
            return running[kind]

    yield Lazily()
    for server in running.values():
        assert server.close() == 0
        assert not [line for line in server.log if "Traceback" in line]


@pytest.mark.parametrize(
    "route", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.long) for name in OF_ENCODERS]
)
def test_q1_every_limit_holds_in_every_way_of_asking(encoders: dict[str, RealServer], route: str) -> None:
    listed = OF_ENCODERS[route]
    asking = Asking(encoders[listed.reads].port, route, listed)
    with contextlib.closing(asking.connection):
        for way, body in listed.bodies().items():
            status, content = asking(json.dumps(body | {"partial": True}).encode())
            assert status == 200, way
            check_holds(json.loads(content), OPERATIONS[route][1].answer)
        check_bounds(document(asking.connection.port), asking, listed)
        check_limits(asking, replace(listed, exempt=listed.exempt | EXEMPT))
        check_numbers(asking, listed)
