"""Scrapes of a whole server: nothing that clients choose becomes a series, no lost engine takes counts along."""

from __future__ import annotations

import http.client
import json
import threading
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from server.fake_worker import DIE
from server.running import TIMEOUT_S, RunningServer, running_server, until
from server.served import Served, served

NUM_CLIENTS = 100
ENDED = "vllm:request_success_total"


def series(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def ask(server: RunningServer, numbers: range, hit: list[int]) -> None:
    """Requests that differ in everything that a client may choose."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    for number in numbers:
        name = f"name-{number}"
        body: dict[str, Any] = {"prompt": "x", "max_tokens": 1, "user": name, "request_id": name, "cache_salt": name}
        headers = {"x-request-id": name, "x-gateway-inference-fairness-id": name, "user-agent": name}
        for method, path, content in (
            ("POST", "/v1/completions", json.dumps(body)),
            ("POST", "/v1/completions", json.dumps(body | {"model": name})),
            ("GET", f"/v1/models/{name}", None),
            ("GET", f"/v2/models/{name}/ready", None),
            ("GET", f"/{name}", None),
            (f"M{number}", "/v1/models", None),
        ):
            connection.request(method, path, content, headers)
            response = connection.getresponse()
            response.read()
            hit.append(response.status)
    connection.close()


def test_there_are_as_many_series_after_any_number_of_names() -> None:
    with running_server() as server:
        hit: list[int] = []
        ask(server, range(1), hit)
        server.request("GET", "/metrics")
        before = series(server.request("GET", "/metrics")[2]).keys()  # with the first scrape itself
        ask(server, range(1, NUM_CLIENTS), hit)
        after = series(server.request("GET", "/metrics")[2])
        assert after.keys() == before
        assert hit[:6] * NUM_CLIENTS == hit
        assert not any("name-" in value for _, labels in after for _, value in labels)
        of_chosen = [
            key for key in after if key[0] == "chairlift:http_responses_total" and ("route", "unknown") in key[1]
        ]
        assert [after[key] for key in of_chosen] == [NUM_CLIENTS]


def test_scrapes_while_engines_are_lost_and_replaced_are_whole_and_counts_only_grow() -> None:
    with served({"heartbeat_s": 0.05, "step_s": 0.001}) as server:
        scrapes: list[bytes] = []
        over = threading.Event()

        def scrape() -> None:
            while not over.is_set():
                status, content = server._answer("GET", "/metrics")
                assert status == 200
                scrapes.append(content)

        thread = threading.Thread(target=scrape)
        thread.start()
        try:
            for number in range(1, 3):
                assert server.ask("POST", "/v1/completions", {"prompt": "some words", "max_tokens": 5})[0] == 200
                assert server.ask("POST", "/v1/completions", {"prompt": DIE, "ignore_eos": True})[0] == 503
                until(lambda number=number: restarts(server) == number)  # type: ignore[misc]
        finally:
            over.set()
            thread.join(TIMEOUT_S)
    check_growth(scrapes)


def restarts(server: Served) -> float:
    return server.metric("chairlift:engine_restarts_total")


def check_growth(scrapes: list[bytes]) -> None:
    """Every scrape is one of the same series, and no counter goes back."""
    first = last = series(scrapes[0])
    for content in scrapes[1:]:
        now = series(content)
        assert first.keys() <= now.keys()
        for key, value in last.items():
            if key[0].endswith(("_total", "_bucket", "_count", "_sum")):
                assert now[key] >= value, key
        last = now
    ended = {dict(labels)["finished_reason"]: value for (name, labels), value in last.items() if name == ENDED}
    assert ended["length"] == 2
    assert any(series(content)[engine_up(first)] == 0 for content in scrapes)


def engine_up(found: dict[tuple[str, tuple[tuple[str, str], ...]], float]) -> tuple[str, tuple[tuple[str, str], ...]]:
    (key,) = [key for key in found if key[0] == "chairlift:engine_up"]
    return key


def test_a_scrape_of_a_server_with_nothing_to_count_says_nothing() -> None:
    with running_server() as server:
        serving, server.app.serving = server.app.serving, None
        assert server.request("GET", "/metrics")[::2] == (200, b"")
        server.app.serving = serving
