"""Few texts in many pairs: what is bounded is the work, not the length of the body (reliability E1, S9)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from chairlift.server.errors import ApiError
from chairlift.server.passes import MAX_ITEMS, Reader
from chairlift.server.rerank import MAX_PAIR_CHARS, rerank, score

EMBEDS = cast(Reader, SimpleNamespace(labels=(), num_outputs=8))
JUDGES = cast(Reader, SimpleNamespace(labels=("relevance",), num_outputs=1))


@pytest.mark.parametrize("reader", [EMBEDS, JUDGES])
@pytest.mark.parametrize(
    ("make", "body"),
    [
        (rerank, {"query": "a", "documents": ["b"] * (MAX_ITEMS + 1)}),
        (rerank, {"query": "a", "texts": ["b"] * 1_000_000}),
        (score, {"text_1": "a", "text_2": ["b"] * 1_000_000}),
        (score, {"text_1": ["a"] * (MAX_ITEMS + 1), "text_2": ["b"] * (MAX_ITEMS + 1)}),
        (score, {"queries": "a", "documents": ["a"] * 1_000_000}),
    ],
)
def test_the_same_pair_a_million_times_is_refused(reader: Reader, make: Any, body: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="pairs") as caught:
        make(body, reader)
    assert caught.value.status == 400


def test_a_long_query_counts_for_each_document() -> None:
    body = {"query": "a" * 30_000, "documents": [str(i) for i in range(1000)]}
    with pytest.raises(ApiError, match=str(MAX_PAIR_CHARS)) as caught:
        rerank(body, JUDGES)
    assert caught.value.param == "query"
    assert len(rerank(body, EMBEDS).items) == 1001, "a model that embeds reads each text once"
    assert len(rerank(body | {"query": "a" * 3000}, JUDGES).items) == 1000
