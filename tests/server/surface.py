"""Every route that the server has, and how to ask it: what is not listed here fails `test_surface.py`.

Who adds a route adds a line to `ROUTES`. If it takes a body of JSON, the line says the least that is served, the type
that the body is read into, and how else the same is asked (streamed, several answers, several prompts, tokens); then
every limit of `limits.py` whose fields the type has is tried in each of these ways.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from chairlift.server.admin import LimitsBody
from chairlift.server.anthropic.body import CountBody, MessagesBody
from chairlift.server.app import App
from chairlift.server.batches.batches import BatchBody
from chairlift.server.batches.routes import UploadForm
from chairlift.server.embeddings import ClassifyBody, EmbeddingBody
from chairlift.server.protocol import ChatBody, CompletionBody
from chairlift.server.rerank import RerankBody, ScoreBody
from chairlift.server.responses.body import ResponsesBody
from chairlift.server.tokenizing import DetokenizeBody, TokenizeBody


class Opens(Enum):
    """Whom a route is open to."""

    ANYBODY = auto()
    """Without a key, where there are keys. Keep this list as short as it is. A page may be here that holds nothing."""
    CLIENTS = auto()
    METRICS = auto()
    OWNER = auto()


@dataclass(frozen=True)
class Listed:
    """A route as the tests know it."""

    opens: Opens = Opens.CLIENTS
    methods: tuple[str, ...] = ("GET", "HEAD")
    body: dict[str, Any] | None = None
    """The least that is served; None if it takes no body."""
    struct: type | None = None
    """What the body is read into."""
    ways: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Further fields, by the way of asking."""
    exempt: dict[str, str] = field(default_factory=dict)
    """Limits that mean nothing here, each with the reason."""
    reads: str = ""
    """The kind of encoder that it needs, if any."""
    needs_folder: bool = False
    """It is about files and batches: see test_surface_of_batches.py."""
    takes: str = ""
    """What a body is, where it is not JSON."""

    @property
    def fields(self) -> frozenset[str]:
        return frozenset() if self.struct is None else frozenset(self.struct.__struct_fields__)  # type: ignore[attr-defined]

    def bodies(self) -> dict[str, dict[str, Any]]:
        """What is served, by the way of asking."""
        assert self.body is not None
        return {"plain": self.body} | {way: self.body | fields for way, fields in self.ways.items()}


USER = {"role": "user", "content": "hi"}
FILE_ID = "file-" + "0" * 24
"""Whoever asks puts the id of a file here that is there."""
POST = ("POST",)

EMBEDDINGS = Listed(
    methods=POST,
    body={"input": "hi"},
    struct=EmbeddingBody,
    ways={"list": {"input": ["a", "b"]}, "tokens": {"input": [1, 2]}, "lists of tokens": {"input": [[1, 2], [3]]}},
    reads="embeddings",
)
CLASSIFY = Listed(
    methods=POST, body={"input": "hi"}, struct=ClassifyBody, ways={"list": {"input": ["a", "b"]}}, reads="labels"
)
RERANK = Listed(
    methods=POST,
    body={"query": "hi", "documents": ["a"]},
    struct=RerankBody,
    ways={"list": {"documents": ["a", "b"]}, "objects": {"documents": [{"text": "a"}]}},
    reads="embeddings",
)
SCORE = Listed(
    methods=POST,
    body={"text_1": "hi", "text_2": "a"},
    struct=ScoreBody,
    ways={"one to many": {"text_2": ["a", "b"]}, "pairs": {"text_1": ["a", "b"], "text_2": ["c", "d"]}},
    reads="embeddings",
)

ROUTES: dict[str, Listed] = {
    "/v1/completions": Listed(
        methods=POST,
        body={"prompt": "hi", "max_tokens": 2},
        struct=CompletionBody,
        ways={
            "stream": {"stream": True, "stream_options": {"include_usage": True}},
            "n": {"n": 2},
            "best of": {"best_of": 2},
            "list": {"prompt": ["a", "b"]},
            "tokens": {"prompt": [1, 2, 3]},
            "lists of tokens, streamed": {"prompt": [[1, 2], [3]], "stream": True},
        },
    ),
    "/v1/chat/completions": Listed(
        methods=POST,
        body={"messages": [USER], "max_tokens": 2},
        struct=ChatBody,
        ways={
            "stream": {"stream": True, "stream_options": {"include_usage": True}},
            "n": {"n": 2},
            "parts": {"messages": [USER, {"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        },
    ),
    "/v1/responses": Listed(
        methods=POST,
        body={"input": "hi", "max_output_tokens": 2},
        struct=ResponsesBody,
        ways={
            "stream": {"stream": True},
            "items": {"input": [{"type": "message", **USER}, {"role": "assistant", "content": "x"}, USER]},
            "parts": {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}]},
        },
    ),
    "/v1/embeddings": EMBEDDINGS,
    "/embeddings": EMBEDDINGS,
    "/v1/classify": CLASSIFY,
    "/classify": CLASSIFY,
    "/v1/rerank": RERANK,
    "/v2/rerank": RERANK,
    "/rerank": RERANK,
    "/v1/score": SCORE,
    "/score": SCORE,
    "/v1/messages": Listed(
        methods=POST,
        body={"messages": [USER], "max_tokens": 2},
        struct=MessagesBody,
        ways={
            "stream": {"stream": True},
            "blocks": {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
            "system": {"system": "be kind"},
        },
    ),
    "/v1/messages/count_tokens": Listed(methods=POST, body={"messages": [USER]}, struct=CountBody),
    "/tokenize": Listed(
        methods=POST,
        body={"prompt": "hi"},
        struct=TokenizeBody,
        ways={"strings": {"return_token_strs": True}, "chat": {"prompt": None, "messages": [USER]}},
        exempt=dict.fromkeys(("prompt:", "messages:"), "one stands in for the other: see test_tokenizing.py"),
    ),
    "/detokenize": Listed(methods=POST, body={"tokens": [104, 105]}, struct=DetokenizeBody),
    "/v1/files": Listed(methods=("POST", "GET", "HEAD"), struct=UploadForm, needs_folder=True, takes="a form"),
    "/v1/files/{id}": Listed(methods=("GET", "HEAD", "DELETE"), needs_folder=True),
    "/v1/files/{id}/content": Listed(needs_folder=True),
    "/v1/batches": Listed(
        methods=("POST", "GET", "HEAD"),
        body={"input_file_id": FILE_ID, "endpoint": "/v1/completions", "completion_window": "24h"},
        struct=BatchBody,
        needs_folder=True,
    ),
    "/v1/batches/{id}": Listed(needs_folder=True),
    "/v1/batches/{id}/cancel": Listed(methods=POST, needs_folder=True, takes="nothing"),
    "/v1/models": Listed(),
    "/v1/models/{model}": Listed(),
    "/version": Listed(),
    "/openapi.json": Listed(),
    "/metrics": Listed(Opens.METRICS),
    "/health": Listed(Opens.ANYBODY),
    "/ready": Listed(Opens.ANYBODY),
    "/ping": Listed(Opens.ANYBODY),
    "/v2/health/live": Listed(Opens.ANYBODY),
    "/v2/health/ready": Listed(Opens.ANYBODY),
    "/v2": Listed(),
    "/v2/models/{model}": Listed(),
    "/v2/models/{model}/ready": Listed(),
    "/ui": Listed(Opens.ANYBODY),
    "/ui/live": Listed(),
    "/ui/requests/{id}": Listed(),
    "/admin/limits": Listed(
        Opens.OWNER, ("GET", "HEAD", "PATCH"), {"max_num_seqs": 4}, LimitsBody, exempt={"model": "it has one engine"}
    ),
    "/admin/requests": Listed(Opens.OWNER),
    "/admin/requests/{id}": Listed(Opens.OWNER),
}


def served_routes(app: App) -> dict[str, tuple[str, ...]]:
    """What an app serves: names of its routes with their methods."""
    return {route.name: tuple(route.methods) for route in app.routes}


def method_with_body(listed: Listed) -> str:
    """Of its methods the one that brings a body."""
    (method,) = [name for name in listed.methods if name not in ("GET", "HEAD", "DELETE")]
    return method
