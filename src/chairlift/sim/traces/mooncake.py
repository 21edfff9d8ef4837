"""Traces in Mooncake's form: one JSON object a line, prompts as ids of the blocks they consist of.

`timestamp` (ms), `input_length`, `output_length`, and `hash_ids`: one for each 512 tokens of the prompt, the last for
the rest. Prompts with the same id at the same place are equal up to there. Further fields that others write are read
where they are: `session`, `tenant`, `principal`, `priority`.

Source: FAST25 release of the Mooncake traces; vLLM, SGLang and AIPerf read the same form.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from chairlift.sim.traces.reading import Recorded, Row, json_rows
from chairlift.sim.workload import Asked, Blocks, Contents, Part

BLOCK_TOKENS = 512
MAX_IDS = 1 << 30
"""Block ids are below this; contents that have none are numbered from here."""


def mooncake(path: Path, *, block_tokens: int = BLOCK_TOKENS) -> Iterator[Asked]:
    """The requests of a trace, in the order of the file, times from its first.

    Raises:
        InvalidOption: no such file, or a line of another shape.
    """
    contents, recorded = Contents(MAX_IDS + 1), Recorded()
    for row in json_rows(path):
        arrival = recorded.at(row, row.number("timestamp") / 1e3)
        num_tokens = row.count("input_length", least=1)
        yield Asked(
            arrival=arrival,
            prompt=_prompt(row, num_tokens, block_tokens, contents),
            num_output=max(1, row.count("output_length")),
            session=_text(row, "session"),
            tenant=_text(row, "tenant") or "",
            principal=_text(row, "principal") or "",
            priority=row.count("priority", least=-(2**31), most=2**31) if "priority" in row.values else 0,
        )


def _prompt(row: Row, num_tokens: int, block_tokens: int, contents: Contents) -> Blocks:
    """Ids count from 0; contents from 1. A trace without ids has prompts that share nothing."""
    ids = row.values.get("hash_ids")
    if ids is None:
        content = contents.take()
        return Blocks((Part(content, content, num_tokens),), num_tokens)
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < MAX_IDS for i in ids):
        raise row.error("hash_ids must be a list of block ids from 0 to below 2^30")
    if len(ids) != -(-num_tokens // block_tokens):
        raise row.error(f"{num_tokens} tokens are {-(-num_tokens // block_tokens)} blocks, not {len(ids)}")
    return Blocks(tuple(_ranges(ids, block_tokens)), num_tokens)


def _ranges(ids: list[int], width: int) -> Iterator[Part]:
    first = last = ids[0]
    for i in ids[1:]:
        if i == last + 1:
            last = i
            continue
        yield Part(first + 1, last + 1, width)
        first = last = i
    yield Part(first + 1, last + 1, width)


def _text(row: Row, name: str) -> str | None:
    value = row.values.get(name)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise row.error(f"{name} must be a text")
