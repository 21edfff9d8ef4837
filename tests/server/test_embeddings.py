"""Vectors and scores over HTTP: `chairlift serve` with a tiny encoder, alone."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

from executors.encoders import write_encoder
from server.raw_http import request
from server.test_real_model import RealServer

LONGEST = 48
"""Tokens that the model reads, with the two around a text."""
DIMENSIONS = 64


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder = write_encoder("bert", tmp_path_factory.mktemp("models") / "tiny")
    running = RealServer(str(folder), "--embedding-max-batch-wait-ms", "2")
    yield running
    assert running.close() == 0, running.log


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder = write_encoder("bert_pair", tmp_path_factory.mktemp("models") / "pairs")
    running = RealServer(str(folder), "--served-model-name", "cross", "--max-model-len", "40")
    yield running
    assert running.close() == 0, running.log


def ask(server: RealServer, path: str, **body: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def vector(server: RealServer, given: Any) -> list[float]:
    status, answer = ask(server, "/v1/embeddings", input=given)
    assert status == 200, answer
    numbers: list[float] = answer["data"][0]["embedding"]
    return numbers


def test_the_official_client_gets_what_it_expects(server: RealServer) -> None:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
        listed = client.models.list()
        answer = client.embeddings.create(model="tiny", input=["w1 w2 w3", "w4"])  # asks for base64
        short = client.embeddings.create(model="tiny", input="w1 w2 w3", dimensions=8, encoding_format="float")
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="other", input="w1")
    assert [model.id for model in listed.data] == ["tiny"]
    assert [(one.index, len(one.embedding)) for one in answer.data] == [(0, DIMENSIONS), (1, DIMENSIONS)]
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens, answer.model) == (8, 8, "tiny")
    whole = np.array(answer.data[0].embedding)
    assert np.linalg.norm(whole) == pytest.approx(1, abs=1e-5)
    assert np.allclose(short.data[0].embedding, whole[:8] / np.linalg.norm(whole[:8]), atol=1e-6)


def test_inputs_of_every_shape_give_the_same_vector(server: RealServer) -> None:
    wanted = vector(server, "w1 w2 w3")
    ids = [2, 5, 6, 7, 3]
    for given in (["w1 w2 w3"], ids, [ids]):
        assert np.allclose(vector(server, given), wanted, atol=1e-6)
    _, answer = ask(server, "/v1/embeddings", input="w1 w2 w3", encoding_format="base64")
    decoded = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), "<f4")
    assert np.allclose(decoded, wanted, atol=1e-6)
    _, answer = ask(server, "/v1/embeddings", input="w1 w2 w3", normalize=False)
    raw = np.array(answer["data"][0]["embedding"])
    assert np.linalg.norm(raw) != pytest.approx(1, abs=0.1) and np.allclose(
        raw / np.linalg.norm(raw), wanted, atol=1e-6
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": "w1 " * LONGEST}, "input"),
        ({"input": ["w1", "w1 " * LONGEST]}, "input[1]"),
        ({"input": [[2, 3], [2, 99]]}, "input[1]"),
        ({"input": [[2, 3], [-1]]}, "input[1]"),
        ({"input": [2, 99]}, "input"),
        ({"input": [2, True]}, "input"),
        ({"input": [[2], [2.5]]}, "input"),
        ({"input": [[2], []]}, "input[1]"),
        ({"input": ["w1", ""]}, "input[1]"),
        ({"input": ["w1", [2]]}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({}, "input"),
        ({"input": ["w1"] * 2049}, "input"),
        ({"input": "w1", "dimensions": 0}, "dimensions"),
        ({"input": "w1", "dimensions": DIMENSIONS + 1}, "dimensions"),
        ({"input": "w1", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "w1", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "w1", "priority": 2**40}, "priority"),
        ({"input": "w1", "e2e_deadline_ms": -1}, "e2e_deadline_ms"),
        ({"input": "w1", "user": "u" * 200}, "user"),
        ({"input": "w1", "model": 7}, "model"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(server: RealServer, fields: dict[str, Any], param: str) -> None:
    """Source: vllm#11375, sglang#27482: an id outside the vocabulary in the input of embeddings."""
    status, answer = ask(server, "/v1/embeddings", **fields)
    assert (status, answer["error"]["param"]) == (400, param), answer


def test_src_inference_snaps_344_one_long_text_fails_alone(server: RealServer) -> None:
    """63 vectors and an error, where the client allows it; otherwise the error names the text."""
    texts = [f"w{i}" for i in range(64)]
    texts[17] = "w1 " * 400
    status, answer = ask(server, "/v1/embeddings", input=texts, partial=True)
    assert status == 200 and len(answer["data"]) == 64
    assert [one["index"] for one in answer["data"] if one["object"] == "error"] == [17]
    error = answer["data"][17]["error"]
    assert (error["status"], error["param"]) == (400, "input[17]") and "400 tokens" not in error["message"]
    assert answer["usage"]["prompt_tokens"] == 63 * 3
    for i in (0, 16, 18, 63):
        assert np.allclose(answer["data"][i]["embedding"], vector(server, texts[i]), atol=1e-5)
    status, answer = ask(server, "/v1/embeddings", input=texts)
    assert (status, answer["error"]["param"]) == (400, "input[17]")
    status, answer = ask(server, "/v1/embeddings", input=["w1 " * 400], partial=True)
    assert status == 200 and answer["data"][0]["object"] == "error"


def test_an_empty_text_fails_alone(server: RealServer) -> None:
    status, answer = ask(server, "/v1/embeddings", input=["w1", "", "w2"], partial=True)
    assert status == 200 and [one["object"] for one in answer["data"]] == ["embedding", "error", "embedding"]
    said = answer["data"][1]["error"]
    assert (said["status"], said["param"]) == (400, "input[1]")
    assert said["message"] == "input[1]: the text must not be empty"
    assert answer["usage"]["prompt_tokens"] == 2 * 3
    status, answer = ask(server, "/v1/embeddings", input=["w1", "", "w2"])
    assert (status, answer["error"]["param"]) == (400, "input[1]")
    status, answer = ask(server, "/v1/embeddings", input="")
    assert (status, answer["error"]["message"]) == (400, "input: the text must not be empty")
    status, answer = ask(server, "/rerank", query="w1", documents=["w1", ""])
    assert status == 200 and [one["index"] for one in answer["results"]] == [0, 1]


def test_a_model_that_is_not_there_is_told_apart_from_what_is(server: RealServer) -> None:
    status, answer = ask(server, "/v1/embeddings", input="w1", model="other")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    assert answer["error"]["message"] == "The model `other` does not exist at this path, which serves `tiny`."


def test_long_texts_are_cut_for_those_who_ask(server: RealServer) -> None:
    wanted = vector(server, "w1 " * (LONGEST - 2))
    for fields in ({"truncate": True}, {"truncate_prompt_tokens": -1}, {"truncate_prompt_tokens": 10**6}):
        status, answer = ask(server, "/v1/embeddings", input="w1 " * 50_000, **fields)
        assert status == 200 and answer["usage"]["prompt_tokens"] == LONGEST
        assert np.allclose(answer["data"][0]["embedding"], wanted, atol=1e-5)
    _, answer = ask(server, "/v1/embeddings", input="w1 w2 w3 w4", truncate_prompt_tokens=4)
    assert np.allclose(answer["data"][0]["embedding"], vector(server, "w1 w2"), atol=1e-5)


def test_a_deadline_that_has_passed_is_a_504(server: RealServer) -> None:
    status, answer = ask(server, "/v1/embeddings", input="w1", e2e_deadline_ms=1e-3)
    assert (status, answer["error"]["code"]) in [(504, "e2e_deadline_exceeded"), (429, "deadline")]


def test_a_model_that_embeds_compares_by_the_angle(server: RealServer) -> None:
    one, two = np.array(vector(server, "w1 w2")), np.array(vector(server, "w3"))
    status, answer = ask(server, "/score", text_1="w1 w2", text_2=["w3", "w1 w2"])
    assert status == 200
    assert [s["score"] for s in answer["data"]] == pytest.approx([float(one @ two), 1.0], abs=1e-5)
    status, answer = ask(server, "/v1/rerank", query="w1 w2", documents=["w3", {"text": "w1 w2"}], top_n=1)
    (best,) = answer["results"]
    assert (best["index"], best["document"]) == (1, {"text": "w1 w2"})
    status, answer = ask(server, "/classify", input="w1")
    assert (status, answer["error"]["code"]) == (400, "unsupported_task")


def test_nothing_is_generated(server: RealServer) -> None:
    status, answer = ask(server, "/v1/completions", prompt="w1")
    assert (status, answer["error"]["message"]) == (400, "this model generates no text")
    status, answer = ask(server, "/v1/chat/completions", messages=[{"role": "user", "content": "w1"}])
    assert status == 400


def test_requests_are_counted_and_explained(server: RealServer) -> None:
    before = server.metrics()
    status, _ = ask(server, "/v1/embeddings", input=["w1", "w2 w3"])
    assert status == 200
    after = server.metrics()
    assert after["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"] == 7
    assert after["vllm:e2e_request_latency_seconds_count"] - before["vllm:e2e_request_latency_seconds_count"] == 2
    assert after["vllm:num_requests_running"] == after["vllm:num_requests_waiting"] == 0
    told = server.admin("GET", "/admin/requests?limit=1")["data"][0]
    assert [choice["decisions"]["prompt_tokens"] for choice in told["choices"]] == [3, 4]
    assert "3 prompt tokens" in told["choices"][0]["sentence"]


def test_a_cross_encoder_scores_pairs(pairs: RealServer) -> None:
    status, answer = ask(pairs, "/rerank", query="w1 w2", documents=["w3 w4", "w5", "w1 " * 60], partial=True)
    assert status == 200
    *ranked, failed = answer["results"]
    assert failed["index"] == 2 and failed["error"]["param"] == "documents[2]"
    assert ranked[0]["relevance_score"] >= ranked[1]["relevance_score"]
    by_place = {one["index"]: one["relevance_score"] for one in ranked}
    _, scored = ask(pairs, "/score", text_1="w1 w2", text_2=["w3 w4", "w5"])
    assert [one["score"] for one in scored["data"]] == pytest.approx([by_place[0], by_place[1]], abs=1e-5)
    _, raw = ask(pairs, "/rerank", query="w1 w2", texts=["w3 w4", "w5"], raw_scores=True, return_text=True)
    logits = {one["index"]: one["score"] for one in raw}
    for i, share in by_place.items():
        assert 1 / (1 + np.exp(-logits[i])) == pytest.approx(share, abs=1e-5)
    assert {one["text"] for one in raw} == {"w3 w4", "w5"}
    _, classified = ask(pairs, "/classify", input=["w1 w2"])
    assert classified["data"][0]["num_classes"] == 1 and classified["data"][0]["label"] == "LABEL_0"
    assert classified["model"] == "cross"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/rerank", {"query": "w1", "documents": ["w2", "w1 " * 60]}, "documents[1]"),
        ("/rerank", {"query": "w1", "documents": []}, "documents"),
        ("/rerank", {"query": "", "documents": ["w1"]}, "query"),
        ("/rerank", {"documents": ["w1"]}, "query"),
        ("/rerank", {"query": "w1", "documents": ["w1"], "top_n": -1}, "top_n"),
        ("/score", {"text_1": ["w1", "w2"], "text_2": ["w1"]}, "text_1"),
        ("/score", {"text_1": "w1"}, "text_2"),
        ("/v1/embeddings", {"input": "w1"}, "model"),
    ],
)
def test_what_cannot_be_scored_is_refused_by_name(
    pairs: RealServer, path: str, fields: dict[str, Any], param: str
) -> None:
    status, answer = ask(pairs, path, **fields)
    assert (status, answer["error"]["param"]) == (400, param), answer


# ---------------------------------------------------------------- many at once


BAD: tuple[Any, ...] = ("w1 " * 60, [2, 99, 3], [[]], ["w1", ""])


def good_text(rng: random.Random) -> str:
    return " ".join(f"w{rng.randrange(90)}" for _ in range(rng.randrange(1, LONGEST - 1)))


class Caller:
    """A connection that stays open until it is cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, given: Any, *, leaves: bool = False) -> tuple[int, Any]:
        """Status and answer; (0, None) if it leaves before."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(request("/v1/embeddings", json.dumps({"input": given}).encode()))
        await writer.drain()
        if leaves:
            await self.close()
            return 0, None
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        size = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
        return int(lines[0].split()[1]), json.loads(await reader.readexactly(size))

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def batches(port: int, count: int, texts: dict[str, list[float]]) -> int:
    """So many times 64 callers at once, one to three of them with something bad; some leave. How many were answered."""
    rng = random.Random(0)
    callers = [Caller(port) for _ in range(64)]
    num_answered = 0
    for _ in range(count):
        given: list[Any] = rng.choices(list(texts), k=64)
        bad = rng.sample(range(64), rng.randrange(1, 4))
        leaving = {i for i in range(64) if rng.random() < 0.03}
        for i in bad:
            given[i] = rng.choice(BAD)
        asking = [
            caller.ask(one, leaves=i in leaving) for i, (caller, one) in enumerate(zip(callers, given, strict=True))
        ]
        for i, (status, answer) in enumerate(await asyncio.gather(*asking)):
            if i in leaving:
                continue
            num_answered += 1
            if i in bad:
                assert 400 <= status < 500, (given[i], answer)
            else:
                assert status == 200, answer
                difference = np.abs(np.subtract(answer["data"][0]["embedding"], texts[given[i]])).max()
                assert difference <= 1e-5, given[i]
    for caller in callers:
        await caller.close()
    return num_answered


@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.long)])
def test_bad_ones_and_those_who_leave_change_nothing_for_others(server: RealServer, count: int) -> None:
    """Each good text gets what it gets alone, and the batcher survives."""
    rng = random.Random(1)
    texts = {text: vector(server, text) for text in (good_text(rng) for _ in range(96))}
    assert asyncio.run(batches(server.port, count, texts)) > 60 * count
    server.wait_idle()
    metrics = server.metrics()
    assert metrics["vllm:num_requests_running"] == metrics["vllm:num_requests_waiting"] == 0
    assert metrics["vllm:kv_cache_usage_perc"] == 0
