"""Every limit on every route, in every way of asking; no route, field or method that is not listed (reliability Q1).

Fixes that missed a path beside the one they were made for are half of the published ones: whoever adds a route or a
field meets this file first.
"""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator

import pytest

from server.fake_worker import FakeOptions
from server.limits import BOUNDLESS, CONTEXT, MAX_BODY_BYTES, Limit, by_field, everywhere
from server.poisons import NUMBERS
from server.running import RunningServer, running_server
from server.surface import ROUTES, Listed, Opens, method_with_body, served_routes
from server.test_app import INSIDE

OWNER = "owner-key"
WITH_BODY = [name for name, listed in ROUTES.items() if listed.body and not (listed.reads or listed.needs_folder)]
EVERYWHERE, BY_FIELD = list(everywhere()), list(by_field())


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    options = FakeOptions(max_model_len=CONTEXT, heartbeat_s=0.05)
    with running_server(options, admin_api_keys=(OWNER,), max_body_bytes=MAX_BODY_BYTES, log_requests=False) as running:
        yield running
        running.wait_idle()


class Asking:
    """Requests on one connection, made anew when the server closes it."""

    def __init__(self, port: int, path: str, listed: Listed) -> None:
        self.path, self.method = path, method_with_body(listed)
        self.headers = {"Authorization": f"Bearer {OWNER}"} if listed.opens is Opens.OWNER else {}
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)

    def __call__(self, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        # It may be turned away before it has sent everything; the answer is there all the same.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.request(self.method, self.path, body, self.headers | (headers or {}))
        response = self.connection.getresponse()
        content = response.read()
        if response.will_close:
            self.connection.close()
        return response.status, content


@pytest.fixture
def asking(server: RunningServer, route: str) -> Iterator[Asking]:
    asking = Asking(server.port, route, ROUTES[route])
    yield asking
    asking.connection.close()


def limits_of(listed: Listed) -> list[Limit]:
    """Those that a route has."""
    fields = listed.fields
    found = [one for one in BY_FIELD if one.extend or (one.fields and fields.issuperset(one.fields))]
    return [one for one in EVERYWHERE + found if one.name.partition(" ")[0] not in listed.exempt]


# ---------------------------------------------------------------- nothing is missing


def test_q1_every_route_is_listed(server: RunningServer) -> None:
    served = served_routes(server.app)
    unlisted = sorted(served.keys() - ROUTES.keys())
    assert not unlisted, f"add to ROUTES in tests/server/surface.py: {unlisted}"
    for name, methods in served.items():
        listed = ROUTES[name]
        assert set(methods) == set(listed.methods), name
        takes_body = bool(set(methods) - {"GET", "HEAD", "DELETE"})
        assert takes_body == ((listed.body is not None and listed.struct is not None) or bool(listed.takes)), name


def test_only_health_is_open_to_anybody(server: RunningServer) -> None:
    is_open = {route.name for route in server.app.routes if route.is_open}
    assert is_open == {name for name in served_routes(server.app) if ROUTES[name].opens is Opens.ANYBODY}
    owners = {route.name for route in server.app.routes if route.is_admin}
    assert owners == {name for name in served_routes(server.app) if ROUTES[name].opens is Opens.OWNER}


@pytest.mark.parametrize("route", WITH_BODY)
def test_every_field_has_a_limit_or_needs_none(route: str) -> None:
    if ROUTES[route].opens is Opens.OWNER:
        return
    limited = {name for one in BY_FIELD for name in one.fields}
    missing = sorted(ROUTES[route].fields - limited - BOUNDLESS)
    assert not missing, f"add a limit to tests/server/limits.py: {missing}"


# ---------------------------------------------------------------- every limit holds


@pytest.mark.parametrize("route", WITH_BODY)
def test_what_a_limit_is_tried_on_is_served_without_it(asking: Asking, route: str) -> None:
    for way, body in ROUTES[route].bodies().items():
        assert asking(json.dumps(body).encode())[0] == 200, way


@pytest.mark.parametrize("route", WITH_BODY)
def test_q1_every_limit_holds_in_every_way_of_asking(server: RunningServer, asking: Asking, route: str) -> None:
    check_limits(asking, ROUTES[route])
    server.wait_idle()


def check_limits(asking: Asking, listed: Listed) -> None:
    """Each limit of a route, in each way of asking."""
    wrong = []
    for way, body in listed.bodies().items():
        for limit in limits_of(listed):
            status, content = asking(limit.request(body), limit.headers)
            if status not in limit.statuses or INSIDE.search(content) or b'"error"' not in content:
                wrong.append((way, limit.name, status, content[:160]))
    assert not wrong, "\n" + "\n".join(map(repr, wrong))


@pytest.mark.parametrize("route", WITH_BODY)
def test_e1_any_number_in_any_field_is_refused_or_served(server: RunningServer, asking: Asking, route: str) -> None:
    check_numbers(asking, ROUTES[route])
    if ROUTES[route].opens is not Opens.OWNER:
        server.wait_idle()


def check_numbers(asking: Asking, listed: Listed) -> None:
    """Whatever stands where a number may."""
    assert listed.body is not None
    assert listed.struct is not None
    wrong = []
    for name in sorted(listed.fields):
        for number in NUMBERS:
            text = json.dumps({field: value for field, value in listed.body.items() if field != name})
            separator = ", " if len(text) > 2 else ""
            body = f'{text[:-1]}{separator}"{name}": {number}}}'.encode()
            status, content = asking(body)
            if status not in (200, 400, 404, 504) or INSIDE.search(content):
                wrong.append((name, number[:20], status, content[:160]))
    assert not wrong, "\n" + "\n".join(map(repr, wrong))


@pytest.mark.parametrize("route", [name for name in WITH_BODY if ROUTES[name].opens is not Opens.OWNER])
def test_src_vllm_10968_ids_are_repeated_up_to_128_characters(server: RunningServer, route: str) -> None:
    assert ROUTES[route].body is not None
    for given, is_repeated in (
        ("x" * 128, True),
        ("x" * 129, False),
        ("x" * 9000, False),
        ("a b", False),
        ("a\tb", False),
    ):
        for body, headers in (
            (ROUTES[route].body, {"X-Request-Id": given}),
            ((ROUTES[route].body or {}) | {"request_id": given}, {}),
        ):
            status, answered, content = server.request("POST", route, body, headers)
            assert status == 200
            told = [answered["x-request-id"], str(json.loads(content).get("id"))]
            assert max(map(len, told)) < 160
            assert any(given in one for one in told) == is_repeated or "request_id" not in ROUTES[route].fields


def test_n1_paths_in_the_place_of_names_are_names_of_nothing(server: RunningServer) -> None:
    """500 of them, in bodies and in the path."""
    steps = ["..", "%2e%2e", "..%2f", "..\\", "....//", "/", "//", "\\\\host\\", "~", "file://", "%00", ".", "C:"]
    ends = [
        "etc/passwd",
        "model.safetensors",
        "smollm2-135m-instruct",
        ".ssh/id_rsa",
        "proc/self/environ",
        "dev/random",
    ]
    names = [f"{a}/{b}{c}" for a in steps for b in steps[:7] for c in ends][:500]
    assert len(names) == 500
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    for number, name in enumerate(names):
        if number % 2:
            connection.request("POST", "/v1/completions", json.dumps({"model": name, "prompt": "x"}))
        else:
            connection.request("GET", "/v1/models/" + name)
        response = connection.getresponse()
        content = response.read()
        assert response.status == 404, name
        assert json.loads(content)["error"]["code"] in ("model_not_found", "unknown_path")
    connection.close()
