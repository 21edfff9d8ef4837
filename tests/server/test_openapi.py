"""The OpenAPI document says what the server has: every route, method and field, and nothing else; what it says holds.

Run with them: `pip install openapi-spec-validator`, and see `schemathesis_run.py` for what finds more.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chairlift.cli.main import main
from chairlift.server.errors import ErrorBody
from chairlift.server.openapi.document import EVENTS_MEDIA
from chairlift.server.route import Route
from server.batch_files import ENDED, follow, form, line
from server.fake_worker import FakeOptions
from server.from_schema import valid
from server.limits import CONTEXT
from server.running import RunningServer, running_server
from server.surface import ROUTES, Opens, method_with_body, served_routes
from server.test_app import INSIDE
from server.test_tools import Thinking, says

KEY, OWNER = "client-key", "owner-key"
HEADERS = {"Authorization": f"Bearer {KEY}"}
OWNERS = {"Authorization": f"Bearer {OWNER}"}
WITH_BODY = [name for name, listed in ROUTES.items() if listed.body and not (listed.reads or listed.needs_folder)]
USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(
        FakeOptions(max_model_len=CONTEXT, heartbeat_s=0.05),
        text=Thinking(),
        api_keys=(KEY,),
        admin_api_keys=(OWNER,),
        log_requests=False,
        enable_per_request_metrics=True,
        ui=True,
    ) as running:
        yield running
        running.wait_idle()


@pytest.fixture(scope="module")
def document(server: RunningServer) -> Any:
    assert server.request("GET", "/openapi.json")[0] == 401
    status, told = server.json("GET", "/openapi.json", headers=HEADERS)
    assert status == 200
    return told


def routes(server: RunningServer) -> dict[str, Route]:
    return {route.name: route for route in server.app.routes}


# ---------------------------------------------------------------- nothing is missing, nothing is invented


def test_every_route_and_method_is_told_and_no_other(server: RunningServer, document: Any) -> None:
    served = {name: {method.lower() for method in methods} for name, methods in served_routes(server.app).items()}
    told = {name: set(methods) for name, methods in document["paths"].items()}
    hint = "give the route an Operation in server/app.py"
    assert told == served, hint


def test_every_field_of_every_body_is_told_and_no_other(server: RunningServer, document: Any) -> None:
    for name, route in routes(server).items():
        for method, operation in route.operations.items():
            told = document["paths"][name][method.lower()]
            assert (operation.body is None) == ("requestBody" not in told), name
            if operation.body is None:
                continue
            assert operation.body is ROUTES[name].struct, name
            properties = resolved(document, body_schema(told))["properties"]
            assert properties.keys() == ROUTES[name].fields | operation.unsupported.keys(), name


def test_it_says_who_may_ask(server: RunningServer, document: Any) -> None:
    by_kind: dict[Opens, list[dict[str, list[str]]]] = {
        Opens.ANYBODY: [],
        Opens.CLIENTS: [{"apiKey": []}, {"apiKeyHeader": []}],
        Opens.METRICS: [{"apiKey": []}, {"apiKeyHeader": []}],
        Opens.OWNER: [{"adminKey": []}],
    }
    for name, methods in document["paths"].items():
        for told in methods.values():
            owner: list[dict[str, list[str]]] = [{"adminKey": []}] if routes(server)[name].is_watched else []
            assert told["security"] == by_kind[ROUTES[name].opens] + owner, name
    assert {one for kind in by_kind.values() for each in kind for one in each} < document["components"][
        "securitySchemes"
    ].keys()


def test_without_keys_it_asks_for_none_and_a_prefix_is_told() -> None:
    with running_server(root_path="/llm", metrics_api_keys=("scraper",)) as server:
        status, told = server.json("GET", "/llm/openapi.json")
    assert status == 200
    assert told["servers"] == [{"url": "/llm"}]
    security = {name: methods["get"]["security"] for name, methods in told["paths"].items() if "get" in methods}
    assert security.pop("/metrics") == [{"metricsKey": []}]
    assert not any(security.values())
    assert not [name for name in told["paths"] if name.startswith("/admin")]


def test_it_is_whole(document: Any) -> None:
    """References lead somewhere, ids are unique, everything is described and has its errors."""
    references = set()
    ids = []

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str):
                references.add(node["$ref"])
            for inner in node.values():
                walk(inner)
        elif isinstance(node, list):
            for inner in node:
                walk(inner)

    walk(document)
    for reference in references:
        resolved(document, {"$ref": reference})
    used = {reference.rpartition("/")[2] for reference in references if "/schemas/" in reference}
    assert used == document["components"]["schemas"].keys()
    for name, methods in document["paths"].items():
        for method, told in methods.items():
            ids.append(told["operationId"])
            assert told["summary"].endswith("."), name
            assert set(told["tags"]) <= {tag["name"] for tag in document["tags"]}
            assert {"200", "400", "500", "503"} <= told["responses"].keys()
            in_path = [one["name"] for one in told["parameters"] if one["in"] == "path"]
            assert all(f"{{{one}}}" in name for one in in_path)
            assert len(in_path) == name.count("{")
            assert method == "head" or all("content" in one for one in told["responses"].values()), name
    assert len(ids) == len(set(ids))


def test_it_is_made_once(server: RunningServer, document: Any) -> None:
    first = server.app._document
    assert server.json("GET", "/openapi.json", headers=HEADERS)[1] == document
    assert server.app._document is first


def test_it_is_valid_openapi(document: Any) -> None:
    validator = pytest.importorskip("openapi_spec_validator")
    validator.validate(document)


def resolved(document: Any, schema: Any) -> Any:
    while "$ref" in schema:
        place = document
        for step in schema["$ref"].removeprefix("#/").split("/"):
            place = place[step]
        schema = place
    return schema


def body_schema(told: Any) -> Any:
    (content,) = told["requestBody"]["content"].values()
    return content["schema"]


# ---------------------------------------------------------------- what it says of responses holds


def check_told(route: Route, method: str, status: int, media: str, content: bytes, document: Any) -> None:
    """A response is of a status that is told, and holds what is told: all of it, and nothing else."""
    operation = route.operations[method]
    told = document["paths"][route.name][method.lower()]["responses"]
    assert str(status) in told, (route.name, status, content[:300])
    assert media.partition(";")[0] in {one.partition(";")[0] for one in told[str(status)]["content"]}
    if media.startswith(EVENTS_MEDIA):
        lines = [line for line in content.split(b"\n") if line.startswith(b"data: ")]
        last = f"data: {operation.last_word}".encode()
        events = [json.loads(line[6:]) for line in lines if line != last]
        assert events
        for event in events:
            is_error = "error" in event and event.keys() <= {"type", "error", "request_id"}
            check_holds(event, operation.error if is_error else operation.events)
    elif status != 200:
        check_holds(json.loads(content), operation.failures.get(status, operation.error))
    elif operation.answer is not None:
        check_holds(json.loads(content), operation.answer)


def check_holds(value: Any, kind: Any) -> None:
    """Keys that a type does not have are left out when a value is read as one: then it is not the same any more."""
    try:
        read = msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        raise AssertionError(f"{error}: {value!r:.1000}") from None
    assert msgspec.to_builtins(read) == value


def ask(server: RunningServer, route: Route, method: str, body: Any, path: str | None = None) -> tuple[int, str, bytes]:
    headers = OWNERS if route.is_admin else HEADERS
    status, answered, content = server.request(method, path or route.name, body, headers)
    return status, answered["content-type"], content


@pytest.mark.parametrize("name", WITH_BODY)
def test_answers_in_every_way_of_asking_are_as_told(server: RunningServer, document: Any, name: str) -> None:
    route, method = routes(server)[name], method_with_body(ROUTES[name])
    for body in ROUTES[name].bodies().values():
        status, media, content = ask(server, route, method, body)
        assert status == 200, content
        check_told(route, method, status, media, content, document)
    wrongs: tuple[Any, ...] = ({}, {"model": "nobody"}, [], b"{", {"model": 1})
    for wrong in wrongs:
        status, media, content = ask(server, route, method, wrong)
        assert status >= 400
        check_told(route, method, status, media, content, document)


MANY: dict[str, Any] = {"n": 2, "explain": True, "return_token_ids": True, "service_tier": "flex"}
STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
CALL = {"type": "function", "function": {"name": "get_weather"}}
TOOL = {"name": "get_weather", "input_schema": {"type": "object"}}
OF_MESSAGES: dict[str, dict[str, Any]] = {
    "one": {"thinking": {"type": "enabled", "budget_tokens": 100}},
    "two": {},
    "none": {"stop_sequences": ["5"]},
    "thought": {"thinking": {"type": "adaptive"}},
    "empty": {"ttft_deadline_ms": 1e-6},
    "!fail": {"messages": [{"role": "user", "content": "!fail"}]},
}
ASKED: dict[str, list[dict[str, Any]]] = {
    "/v1/messages": [
        {"messages": [{"role": "user", "content": f"ask:{what}"}], "tools": [TOOL], "max_tokens": 110} | more | streamed
        for what, more in OF_MESSAGES.items()
        for streamed in ({}, {"stream": True})
    ],
    "/v1/chat/completions": [
        MANY | {"logprobs": True, "top_logprobs": 2},
        MANY | {"logprobs": True, "top_logprobs": 2} | STREAM,
        {"prompt_logprobs": 1},
        *(
            {"messages": [{"role": "user", "content": f"ask:{what}"}], "tools": [CALL], "max_tokens": None} | streamed
            for what in ("one", "two", "none", "thought")
            for streamed in ({}, STREAM)
        ),
        {"ttft_deadline_ms": 1e-6, "explain": True},
        {"messages": [{"role": "user", "content": "!fail"}], "max_tokens": 9},
        {"messages": [{"role": "user", "content": "!fail"}], "max_tokens": 9} | STREAM,
    ],
    "/v1/responses": [
        {"explain": True, "top_logprobs": 2, "service_tier": "flex", "metadata": {"a": "b"}} | streamed
        for streamed in ({}, {"stream": True})
    ]
    + [
        {"input": f"ask:{what}", "tools": [{"type": "function", "name": "get_weather"}]} | fields | streamed
        for what in ("one", "two", "none", "thought", "broken")
        for fields in ({"max_output_tokens": None}, {"max_output_tokens": 30})
        for streamed in ({}, {"stream": True})
    ]
    + [{"input": "!fail", "max_output_tokens": 9} | streamed for streamed in ({}, {"stream": True})],
    "/v1/completions": [
        MANY | {"logprobs": 2},
        MANY | {"logprobs": 2} | STREAM,
        {"echo": True, "logprobs": 1, "max_tokens": 0},
        {"echo": True, "return_token_ids": True} | STREAM,
        {"prompt_logprobs": 1},
        {"best_of": 3, "n": 2},
        {"e2e_deadline_ms": 1e-6},
        {"prompt": "!fail", "max_tokens": 9} | STREAM,
    ],
}


@pytest.mark.parametrize("name", ASKED)
def test_answers_with_all_that_can_be_asked_are_as_told(server: RunningServer, document: Any, name: str) -> None:
    before, server.worker.says = server.worker.says, says
    try:
        for fields in ASKED[name]:
            body = {key: value for key, value in ((ROUTES[name].body or {}) | fields).items() if value is not None}
            status, media, content = ask(server, routes(server)[name], "POST", body)
            assert status in (200, 500, 504), content
            check_told(routes(server)[name], "POST", status, media, content, document)
    finally:
        server.worker.says = before


def test_what_is_read_is_as_told(server: RunningServer, document: Any) -> None:
    for name, route in routes(server).items():
        paths = [name.replace("{model}", "fake").replace("{id}", "cmpl-1")] if "{" in name else [name]
        if "GET" in route.methods:
            for path in (*paths, *(one.replace("fake", "nobody") for one in paths)):
                status, media, content = ask(server, route, "GET", None, path)
                assert status in (200, 404)
                check_told(route, "GET", status, media, content, document)


def test_what_is_said_of_files_and_batches_is_as_told(tmp_path: Path) -> None:
    told: Counter[str] = Counter()
    with running_server(FakeOptions(heartbeat_s=0.05), batch_dir=str(tmp_path)) as server:
        document, by_name = server.app.document(), routes(server)

        def asks(method: str, name: str, body: Any = None, headers: dict[str, str] | None = None, **ids: str) -> Any:
            status, answered, content = server.request(method, name.format(**ids), body, headers)
            check_told(by_name[name], method, status, answered["content-type"], content, document)
            told[f"{method} {name} {status}"] += 1
            return json.loads(content) if "json" in answered["content-type"] else None

        def is_over(batch_id: str) -> bool:
            return asks("GET", "/v1/batches/{id}", id=batch_id)["status"] in ENDED

        file_id = asks("POST", "/v1/files", *form("\n".join(map(line, "ab")).encode()))["id"]
        wrong_id = asks("POST", "/v1/files", *form(b"no line of a batch"))["id"]
        window = {"endpoint": "/v1/completions", "completion_window": "24h", "metadata": {"a": "b"}}
        for each in (file_id, wrong_id):
            batch_id = asks("POST", "/v1/batches", window | {"input_file_id": each})["id"]
            follow(partial(is_over, batch_id))
            asks("POST", "/v1/batches/{id}/cancel", id=batch_id)
        asks("POST", "/v1/batches", window)
        asks("POST", "/v1/files", b"", {"Content-Type": "text/plain"})
        for name in ("/v1/files", "/v1/batches"):
            assert asks("GET", name)["data"]
        for name in ("/v1/files/{id}", "/v1/files/{id}/content", "/v1/batches/{id}"):
            asks("GET", name, id="none")
        asks("GET", "/v1/files/{id}", id=file_id)
        asks("GET", "/v1/files/{id}/content", id=file_id)
        for _ in range(2):
            asks("DELETE", "/v1/files/{id}", id=file_id)
    assert told["POST /v1/batches/{id}/cancel 409"] == 2
    assert told["DELETE /v1/files/{id} 200"] == told["DELETE /v1/files/{id} 404"] == 1


def test_refusals_of_the_connection_itself_are_as_told(server: RunningServer) -> None:
    for headers in ({"x-long": "a" * 17_000}, {"content-encoding": "gzip"}, {"content-length": "x"}):
        status, _, content = server.request("POST", "/v1/completions", b"{}", HEADERS | headers)
        assert status in (400, 415, 431)
        check_holds(json.loads(content), ErrorBody)


# ---------------------------------------------------------------- what it says of bodies holds


@settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_what_the_document_allows_is_served_or_refused_and_never_breaks_anything(
    server: RunningServer, document: Any, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(WITH_BODY))
    listed = ROUTES[name]
    method = method_with_body(listed)
    told = document["paths"][name][method.lower()]
    schema = resolved(document, body_schema(told))
    fields = data.draw(st.sets(st.sampled_from(sorted(schema["properties"])), min_size=1, max_size=4))
    components = document["components"]["schemas"]
    changed = {field: data.draw(valid(schema["properties"][field], components), label=field) for field in fields}
    body = copy.deepcopy(listed.body or {}) | changed
    for slow in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if isinstance(body.get(slow), int):
            body[slow] = min(body[slow], 4)
    route = routes(server)[name]
    status, media, content = ask(server, route, method, json.dumps(body).encode())
    assert status not in (500, 502, 503), content
    assert not INSIDE.search(content)
    check_told(route, method, status, media, content, document)


def test_the_document_can_be_written_without_a_model(document: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["openapi"]) == 0
    assert json.loads(capsys.readouterr().out) == document


def test_who_is_not_ready_says_so_as_told() -> None:
    with running_server(FakeOptions(heartbeat_s=0.05), ui=True) as server:
        server.app.draining = True
        for name, route in routes(server).items():
            if "GET" in route.methods:
                path = name.replace("{model}", "fake").replace("{id}", "none")
                status, headers, content = server.request("GET", path)
                check_told(route, "GET", status, headers["content-type"], content, server.app.document())
