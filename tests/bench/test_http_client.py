from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from bench.stub_server import StubServer
from chairlift.bench.datasets import Sample
from chairlift.bench.exchange import Exchange
from chairlift.bench.http_client import ConnectionLost, HttpClient
from chairlift.bench.openai_client import BadAnswer, Form, OpenAIClient, wait_until_ready
from chairlift.bench.server_process import free_port
from chairlift.core.errors import InvalidOption


def asked(
    stub: StubServer, *bodies: dict[str, Any], chat: bool = False, stream: bool = True, timeout_s: float = 10.0
) -> list[Exchange]:
    """One exchange for each of the bodies' extra fields, one after another over one client."""

    async def main() -> list[Exchange]:
        async with stub.listening() as url:
            http = HttpClient(url, clock=time.monotonic, timeout_s=timeout_s)
            path = "/v1/chat/completions" if chat else "/v1/completions"
            exchanges = []
            for extra in bodies:
                form = Form(model="m", path=path, chat=chat, stream=stream, extra=extra)
                exchanges.append(await OpenAIClient(http, form, time.monotonic).ask(Sample("é", 1, 6)))
            await http.close()
            return exchanges

    return asyncio.run(main())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("chat", [False, True])
def test_streams_cut_anywhere(seed: int, chat: bool) -> None:
    (exchange,) = asked(StubServer(seed), {}, chat=chat)
    assert exchange.error is None
    assert exchange.text == " w0 w1 w2 w3 w4 w5"
    assert (exchange.num_input_tokens, exchange.num_output_tokens, len(exchange.deliveries)) == (9, 6, 6)
    times = [exchange.start, *exchange.deliveries, exchange.finished]
    assert times == sorted(times)


def test_whole_responses() -> None:
    (exchange,) = asked(StubServer(), {}, stream=False)
    assert (exchange.error, exchange.text, exchange.num_output_tokens) == (None, " w0 w1 w2 w3 w4 w5", 6)


def test_a_connection_serves_one_request_after_another() -> None:
    stub = StubServer()
    exchanges = asked(stub, {}, {"stub": "refuse"}, {"stub": "error"}, {}, {})
    assert [exchange.error is None for exchange in exchanges] == [True, False, False, True, True]
    assert exchanges[1].error == 'HTTP 503: {"error": {"message": "full"}}'
    # The one with the error event was given up in the middle of its response: its connection is of no more use.
    assert stub.num_connections == 2


def test_a_connection_that_the_server_closed_in_between_is_replaced() -> None:
    stub = StubServer()
    stub.close_after_response = True
    exchanges = asked(stub, {}, {}, {})
    assert [exchange.error for exchange in exchanges] == [None, None, None]
    assert stub.num_connections == 3


def test_a_response_that_ends_with_its_connection() -> None:
    (exchange,) = asked(StubServer(), {"stub": "close"})
    assert exchange.error is None and exchange.num_output_tokens == 6


def test_a_stream_that_breaks_off() -> None:
    broken, after = asked(StubServer(), {"stub": "break"}, {})
    assert broken.error is not None and "closed the connection" in broken.error
    assert len(broken.deliveries) == 3 and broken.finished >= broken.deliveries[-1]
    assert after.error is None


def test_an_error_in_the_stream() -> None:
    (exchange,) = asked(StubServer(), {"stub": "error"})
    assert exchange.error is not None and "the engine died" in exchange.error


def test_a_request_that_is_given_up_takes_its_connection_along() -> None:
    async def main() -> None:
        stub = StubServer()
        async with stub.listening() as url:
            http = HttpClient(url, clock=time.monotonic, timeout_s=0.05)
            form = Form("m", "/v1/completions", chat=False, extra={"stub": "hang"})
            exchange = await OpenAIClient(http, form, time.monotonic).ask(Sample("a", 1, 1))
            assert exchange.error == "TimeoutError"
            await asyncio.wait_for(stub.client_gone.wait(), 10.0)

    asyncio.run(main())


def test_headers_and_body_arrive() -> None:
    async def main(stub: StubServer) -> None:
        async with stub.listening() as url:
            http = HttpClient(url + "/", clock=time.monotonic, timeout_s=5.0)
            form = Form("m", "/v1/completions", chat=False, headers=(("Authorization", "Bearer k"),))
            await OpenAIClient(http, form, time.monotonic).ask(Sample("é", 1, 1))
            await http.close()

    stub = StubServer()
    asyncio.run(main(stub))
    assert stub.headers[0]["authorization"] == "Bearer k"
    assert stub.headers[0]["host"].startswith("127.0.0.1:")
    assert stub.bodies[0]["prompt"] == "é"


@pytest.mark.parametrize(
    "reply",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",
        b"",
    ],
)
def test_replies_that_are_not_http(reply: bytes) -> None:
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reply)
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            http = HttpClient(f"http://127.0.0.1:{port}", clock=time.monotonic, timeout_s=5.0)
            with pytest.raises(ConnectionLost):
                await http.request("GET", "/")

    asyncio.run(main())


def test_nobody_listens() -> None:
    http = HttpClient(f"http://127.0.0.1:{free_port()}", clock=time.monotonic, timeout_s=5.0)
    with pytest.raises(ConnectionLost, match="cannot connect"):
        asyncio.run(http.request("GET", "/"))
    with pytest.raises(BadAnswer, match="did not become ready: cannot connect"):
        asyncio.run(wait_until_ready(http, 0.1))
    with pytest.raises(BadAnswer, match="it exited"):
        asyncio.run(wait_until_ready(http, 5.0, lambda: False))


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://x", "http://", "http://h:port", "http://[::1"])
def test_base_urls_that_are_none(url: str) -> None:
    with pytest.raises(InvalidOption, match="base URL"):
        HttpClient(url, clock=time.monotonic, timeout_s=1.0)


def test_a_path_in_the_base_url_goes_before_the_endpoint() -> None:
    async def main() -> bytes:
        async with StubServer().listening() as url:
            http = HttpClient(url + "/prefix", clock=time.monotonic, timeout_s=5.0)
            response = await http.request("GET", "/health")
            await http.close()
            assert response.status == 404
            return response.body

    assert json.loads(asyncio.run(main())) == {"error": {"message": "no /prefix/health"}}
