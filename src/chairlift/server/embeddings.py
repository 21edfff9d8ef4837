"""POST /v1/embeddings and /classify: what is asked of single passes over texts one by one."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Annotated, Any

from chairlift.core.types import PoolingParams
from chairlift.server.bounds import TokenId, tells
from chairlift.server.errors import ApiError, bad_request
from chairlift.server.fields import check_range
from chairlift.server.items import Item
from chairlift.server.json_body import convert
from chairlift.server.openapi.pass_answers import Classification, EmbeddingList
from chairlift.server.outcomes import Outcome, error_json, numbers
from chairlift.server.passes import Envelope, Job, MakeJob, PassFields, Reader, operation
from chairlift.server.route import Operation
from chairlift.server.shapes import encode_json

ENCODINGS = ("float", "base64")

Input = Annotated[
    Annotated[str, tells(minLength=1)] | Annotated[list[str | TokenId | list[TokenId]], tells(minItems=1)],
    tells("A text or its token ids, or a list of texts, or of lists of token ids.", required=True),
]


class EmbeddingBody(PassFields, kw_only=True):
    """POST /v1/embeddings."""

    input: Input | None = None
    encoding_format: Annotated[str, tells(enum=["", *ENCODINGS])] | None = None
    dimensions: Annotated[int, tells("The first of each vector; at most all.", minimum=1)] | None = None
    normalize: bool | None = None


class ClassifyBody(PassFields, kw_only=True):
    """POST /classify."""

    input: Input | None = None
    use_activation: bool | None = None


def embeddings(content: dict[str, Any], reader: Reader) -> Job:
    """A body of /v1/embeddings.

    Raises:
        ApiError: 400, naming the field.
    """
    if reader.labels:
        raise bad_request("this model classifies texts and gives no embeddings", "model", "unsupported_task")
    body = convert(content, EmbeddingBody)
    encoding = body.encoding_format or ENCODINGS[0]
    if encoding not in ENCODINGS:
        raise bad_request(f"encoding_format must be one of {', '.join(ENCODINGS)}", "encoding_format")
    check_range("dimensions", body.dimensions, 1, reader.num_outputs)

    def entry(index: int, outcome: Outcome) -> dict[str, Any]:
        if isinstance(outcome, ApiError):
            return {"object": "error", "index": index, "error": error_json(outcome)}
        vector = b64encode(outcome).decode() if encoding == "base64" else numbers(outcome).tolist()
        return {"object": "embedding", "index": index, "embedding": vector}

    return _job(body, body.input, PoolingParams("embed", body.normalize, body.dimensions), entry, with_id=False)


def classify(content: dict[str, Any], reader: Reader) -> Job:
    """A body of /classify.

    Raises:
        ApiError: 400, naming the field.
    """
    if not reader.labels:
        raise bad_request("this model gives embeddings and classifies nothing", "model", "unsupported_task")
    body = convert(content, ClassifyBody)

    def entry(index: int, outcome: Outcome) -> dict[str, Any]:
        if isinstance(outcome, ApiError):
            return {"index": index, "error": error_json(outcome)}
        shares = numbers(outcome).tolist()
        label = reader.labels[max(range(len(shares)), key=shares.__getitem__)]
        return {"index": index, "label": label, "probs": shares, "num_classes": len(shares)}

    params = PoolingParams("classify", activate=body.use_activation is not False)
    return _job(body, body.input, params, entry, with_id=True)


def _job(
    fields: PassFields,
    given: Input | None,
    params: PoolingParams,
    entry: Callable[[int, Outcome], dict[str, Any]],
    *,
    with_id: bool,
) -> Job:
    """A pass over each text by itself; `entry` is what the response says of one."""
    items, is_list = _items(given)
    return Job(
        items=items,
        params=params,
        fields=fields,
        name=lambda i: f"input[{i}]" if is_list else "input",
        write=lambda outcomes, envelope: _listed(
            envelope, [entry(i, outcome) for i, outcome in enumerate(outcomes)], with_id=with_id
        ),
    )


def _items(given: Input | None) -> tuple[list[Item], bool]:
    """One text or list of token ids, or a list of those; and whether it is a list of them."""
    if isinstance(given, str):
        return [given], False
    if not given:
        raise bad_request("input must not be empty", "input")
    if isinstance(given[0], int):
        if not all(type(token) is int for token in given):
            raise bad_request("an input of token ids must hold integers only", "input")
        return [[token for token in given if isinstance(token, int)]], False
    kind = type(given[0])
    if any(type(one) is not kind for one in given):
        raise bad_request("input must be text, token ids, a list of texts or a list of lists of token ids", "input")
    for i, one in enumerate(given):
        if isinstance(one, list) and any(type(token) is not int for token in one):
            raise bad_request(f"input[{i}] must hold integers only", f"input[{i}]")
    return [one for one in given if not isinstance(one, int)], True


def _listed(envelope: Envelope, data: list[dict[str, Any]], *, with_id: bool) -> bytes:
    """A response in the way of the OpenAI API."""
    body: dict[str, Any] = {"object": "list", "data": data, "model": envelope.model, "usage": envelope.usage()}
    return encode_json({"id": f"classify-{envelope.id}", "created": envelope.created} | body if with_id else body)


_EMBEDDINGS = operation("Vectors of texts. `dimensions` keeps the first of them.", EmbeddingBody, EmbeddingList)
_CLASSIFY = operation("Labels of texts, with probabilities.", ClassifyBody, Classification)

PASS_ROUTES: dict[str, tuple[MakeJob, Operation]] = {
    "/v1/embeddings": (embeddings, _EMBEDDINGS),
    "/embeddings": (embeddings, _EMBEDDINGS),
    "/classify": (classify, _CLASSIFY),
    "/v1/classify": (classify, _CLASSIFY),
}
