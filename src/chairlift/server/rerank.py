"""POST /rerank and /score: how well texts go together, by a cross-encoder or by the angle between embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from chairlift.core.types import PoolingParams
from chairlift.server.bounds import tells
from chairlift.server.errors import ApiError, bad_request, never_fits
from chairlift.server.fields import MAX_INT, check_range
from chairlift.server.items import Item
from chairlift.server.json_body import convert, field_of
from chairlift.server.openapi.pass_answers import RankedText, Ranking, ScoreList
from chairlift.server.outcomes import Outcome, cosine, error_json, numbers
from chairlift.server.passes import MAX_ITEMS, Envelope, Job, MakeJob, PassFields, Reader, operation
from chairlift.server.route import Operation
from chairlift.server.shapes import encode_json

MAX_PAIR_CHARS = 8 << 20
"""Of all pairs that a cross-encoder reads; a query counts once for each document. Twice the longest body."""

Scored = float | ApiError


class Document(msgspec.Struct):
    text: str


class RerankBody(PassFields, kw_only=True):
    """POST /rerank: as Cohere and Jina have it, and as text-embeddings-inference has it (`texts`)."""

    query: Annotated[str, tells(minLength=1, required=True)] | None = None
    documents: Annotated[list[str | Document], tells(minItems=1, maxItems=MAX_ITEMS)] | None = None
    texts: Annotated[list[str], tells("Instead of `documents`.", minItems=1, maxItems=MAX_ITEMS)] | None = None
    top_n: Annotated[int, tells("0 is all.", minimum=0, maximum=MAX_INT)] | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    raw_scores: bool | None = None


Side = str | Annotated[list[str], tells(minItems=1, maxItems=MAX_ITEMS)]
"""One text or several."""


class ScoreBody(PassFields, kw_only=True):
    """POST /score, as vLLM has it."""

    text_1: Side | None = None
    text_2: Side | None = None
    queries: Annotated[Side, tells("Instead of `text_1`.")] | None = None
    documents: Annotated[Side, tells("With `queries`.")] | None = None
    use_activation: bool | None = None


def rerank(content: dict[str, Any], reader: Reader) -> Job:
    """A body of /rerank.

    Raises:
        ApiError: 400, naming the field.
    """
    body = convert(content, RerankBody)
    field = "documents" if body.texts is None else "texts"
    given = body.texts if body.documents is None else body.documents
    if not body.query:
        raise bad_request("query must not be empty", "query")
    if not given:
        raise bad_request(f"{field} must not be empty", field)
    check_range("top_n", body.top_n, 0, MAX_INT)
    texts = [one if isinstance(one, str) else one.text for one in given]
    write = _write_texts if body.texts is not None else _write_documents
    pairs = [(body.query, text) for text in texts]
    return _job(
        reader,
        body,
        pairs,
        lambda side, i: "query" if side == 0 else f"{field}[{i}]",
        activate=not body.raw_scores,
        write=lambda scores, envelope: write(body, texts, scores, envelope),
    )


def score(content: dict[str, Any], reader: Reader) -> Job:
    """A body of /score: one text against each of the others, or two lists pair by pair.

    Raises:
        ApiError: 400, naming the field.
    """
    body = convert(content, ScoreBody)
    names = ("text_1", "text_2") if body.queries is None else ("queries", "documents")
    sides: list[list[str]] = []
    for name in names:
        given = getattr(body, name)
        side = [given] if isinstance(given, str) else given
        if not side:
            raise bad_request(f"{name} must not be empty", name)
        sides.append(side)
    first, second = sides
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        raise bad_request(f"{names[0]} must be one text, or as many as {names[1]} has", names[0])

    def write(scores: list[Scored], envelope: Envelope) -> bytes:
        data = [{"index": i, "object": "score"} | _scored("score", one) for i, one in enumerate(scores)]
        return encode_json(
            {
                "id": f"score-{envelope.id}",
                "object": "list",
                "created": envelope.created,
                "model": envelope.model,
                "data": data,
                "usage": envelope.usage(),
            }
        )

    return _job(
        reader,
        body,
        list(zip(first, second, strict=True)),
        lambda side, i: f"{names[side]}[{i}]",
        activate=body.use_activation is not False,
        write=write,
    )


def _job(
    reader: Reader,
    fields: PassFields,
    pairs: list[tuple[str, str]],
    name: Callable[[int, int], str],
    *,
    activate: bool,
    write: Callable[[list[Scored], Envelope], bytes],
) -> Job:
    """Pairs for a cross-encoder, or the texts of the pairs, each once, for a model that embeds.

    `name(side, i)` is what the API calls the first or second text of pair i.
    """
    if len(pairs) > MAX_ITEMS:  # of pairs, not of texts: the same two a million times are few texts and much work
        raise never_fits(f"at most {MAX_ITEMS} pairs are scored at once", field_of(name(1, 0)))
    if not reader.labels:
        return _cosines(fields, pairs, name, write)
    if sum(len(one) + len(two) for one, two in pairs) > MAX_PAIR_CHARS:
        raise never_fits(
            f"the pairs have more than {MAX_PAIR_CHARS} characters, counting a text in each pair that it is part of",
            field_of(name(0, 0)),
        )
    if len(reader.labels) != 1:
        raise bad_request(
            f"this model tells {len(reader.labels)} labels apart and scores no pairs: use /classify",
            "model",
            "unsupported_task",
        )

    def scores(outcomes: list[Outcome]) -> list[Scored]:
        return [one if isinstance(one, ApiError) else numbers(one)[0] for one in outcomes]

    items: list[Item] = list(pairs)
    return Job(
        items=items,
        params=PoolingParams("classify", activate=activate),
        fields=fields,
        name=lambda i: name(1, i),
        write=lambda outcomes, envelope: write(scores(outcomes), envelope),
    )


def _cosines(
    fields: PassFields,
    pairs: list[tuple[str, str]],
    name: Callable[[int, int], str],
    write: Callable[[list[Scored], Envelope], bytes],
) -> Job:
    """The texts of pairs, each once, whose vectors are compared."""
    places: dict[str, int] = {}
    names: list[str] = []
    for i, pair in enumerate(pairs):
        for side, text in enumerate(pair):
            if text not in places:
                places[text] = len(places)
                names.append(name(side, i))

    def angles(outcomes: list[Outcome]) -> list[Scored]:
        found: list[Scored] = []
        for one, two in pairs:
            a, b = outcomes[places[one]], outcomes[places[two]]
            found.append(a if isinstance(a, ApiError) else b if isinstance(b, ApiError) else cosine(a, b))
        return found

    return Job(
        items=list(places),
        params=PoolingParams("embed"),
        fields=fields,
        name=names.__getitem__,
        write=lambda outcomes, envelope: write(angles(outcomes), envelope),
        takes_empty=True,
    )


def _scored(name: str, one: Scored) -> dict[str, Any]:
    """A score by the name that its API gives it, or what was wrong."""
    return {"error": error_json(one)} if isinstance(one, ApiError) else {name: one}


def _ranked(scores: list[Scored]) -> list[int]:
    """Places by score, the best first; those without one come last."""

    def key(place: int) -> float:
        one = scores[place]
        return float("inf") if isinstance(one, ApiError) else -one

    return sorted(range(len(scores)), key=key)


def _write_documents(body: RerankBody, texts: list[str], scores: list[Scored], envelope: Envelope) -> bytes:
    results: list[dict[str, Any]] = []
    for i in _ranked(scores)[: body.top_n or None]:
        result: dict[str, Any] = {"index": i} | _scored("relevance_score", scores[i])
        if body.return_documents is not False:
            result["document"] = {"text": texts[i]}
        results.append(result)
    return encode_json(
        {
            "id": f"rerank-{envelope.id}",
            "model": envelope.model,
            "results": results,
            "usage": envelope.usage(),
        }
    )


def _write_texts(body: RerankBody, texts: list[str], scores: list[Scored], envelope: Envelope) -> bytes:
    results: list[dict[str, Any]] = []
    for i in _ranked(scores):
        result: dict[str, Any] = {"index": i} | _scored("score", scores[i])
        if body.return_text:
            result["text"] = texts[i]
        results.append(result)
    return encode_json(results)


_RERANK = operation("How well texts answer a query, the best first.", RerankBody, Ranking | list[RankedText])
_SCORE = operation("How well texts go together, pair by pair.", ScoreBody, ScoreList)

PAIR_ROUTES: dict[str, tuple[MakeJob, Operation]] = {
    "/rerank": (rerank, _RERANK),
    "/v1/rerank": (rerank, _RERANK),
    "/v2/rerank": (rerank, _RERANK),
    "/score": (score, _SCORE),
    "/v1/score": (score, _SCORE),
}
