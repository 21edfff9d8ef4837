"""The bounds that the OpenAPI document tells are those that hold: at each a field is taken, just past it refused."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from chairlift.server.openapi.document import Json
from server.edges import at_bounds, past_bounds
from server.fake_worker import FakeOptions
from server.limits import CONTEXT
from server.running import RunningServer, running_server
from server.surface import ROUTES, Listed
from server.test_surface import OWNER, WITH_BODY, Asking

NEEDS: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "max_tokens": {"echo": True},
    "text_1": {"text_2": "x"},
    "queries": {"documents": ["x"]},
    "documents": {"queries": "x"},
    "texts": {"documents": None},
    "messages": {"prompt": None},
}
"""What a field is refused without."""
NARROWER = {
    "min_tokens", "reasoning_effort", "tools", "tool_choice",  # the model's
    "max_num_seqs", "max_num_batched_tokens",  # the server's
    "text_1", "queries",  # as many as on the other side
    "messages",  # content is left out by the assistant only
}  # fmt: skip
"""Fields of which not all is taken that is told."""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    options = FakeOptions(max_model_len=CONTEXT, heartbeat_s=0.05)
    with running_server(options, admin_api_keys=(OWNER,), log_requests=False) as running:
        yield running
        running.wait_idle()


def check_bounds(document: Json, asking: Asking, listed: Listed) -> None:
    """Each field of a body at each of its bounds, and just past it."""
    components = document["components"]["schemas"]
    told = document["paths"][asking.path][asking.method.lower()]["requestBody"]["content"]["application/json"]["schema"]
    schema = components[told["$ref"].rpartition("/")[2]]
    wrong = []
    for name, field in schema["properties"].items():
        needs = {key: value for key, value in NEEDS.get(name, {}).items() if key in listed.fields}
        base = (listed.body or {}) | needs
        for value in past_bounds(field, components):
            status, answer = refusal(asking, base | {name: value})
            if status != 400 or not is_about(answer, name):
                wrong.append(("past", name, str(value)[:60], status, answer))
        for value in at_bounds(field, components):
            status, answer = refusal(asking, base | {name: value})
            if status not in (200, 504) and name not in NARROWER and is_about(answer, name):
                wrong.append(("at", name, str(value)[:60], status, answer))
        if name in schema["required"]:
            for body in ({key: value for key, value in base.items() if key != name}, base | {name: None}):
                status, answer = refusal(asking, body)
                if status != 400 or not is_about(answer, name):
                    wrong.append(("without", name, "", status, answer))
    assert not wrong, "\n" + "\n".join(map(repr, wrong))


def is_about(answer: dict[str, Any], name: str) -> bool:
    """Whether a refusal names the field; not every API has a place for that beside the message."""
    return name in str(answer.get("param") or answer.get("message"))


def refusal(asking: Asking, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    status, content = asking(json.dumps(body).encode())
    return status, json.loads(content).get("error", {}) if status >= 400 else {}


@pytest.mark.parametrize("route", WITH_BODY)
def test_every_bound_that_is_told_holds(server: RunningServer, route: str) -> None:
    asking = Asking(server.port, route, ROUTES[route])
    with contextlib.closing(asking.connection):
        check_bounds(server.app.document(), asking, ROUTES[route])
