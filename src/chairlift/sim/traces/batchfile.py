"""Files of requests in the OpenAI batch format: what would serving this file cost, and how long would it take?

A file says what is asked and how long answers may get, not how long they get: `output` says that, cut to what is
allowed. Prompts are made tokens by whoever knows a tokenizer; without one, words stand for them.

Source: the OpenAI Batch API, "input file".
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from chairlift.sim.lengths import Lengths
from chairlift.sim.traces.reading import Row, json_rows
from chairlift.sim.workload import VOCAB_SIZE, Asked, Literal

MAX_CHOICES = 128
"""As many as a server gives."""

Encode = Callable[[str], list[int]]


def words(text: str) -> list[int]:
    """A token for each word, the same for the same word; no tokenizer, but prefixes are equal where texts are."""
    return [zlib.crc32(word.encode("utf-8", "surrogatepass")) % (VOCAB_SIZE - 1) + 1 for word in text.split()]


def batch_file(
    path: Path,
    *,
    output: Lengths | None,
    seed: int = 0,
    encode: Encode = words,
    arrivals: Iterator[float] | None = None,
) -> Iterator[Asked]:
    """The requests of a batch file, all at once or at the times of `arrivals`.

    Raises:
        InvalidOption: no such file, a line of another shape, or an answer of unknown length.
    """
    random = Random(f"{seed}/output")
    for row in json_rows(path):
        arrival = 0.0 if arrivals is None else next(arrivals, None)
        if arrival is None:
            return
        body = row.row("body")
        content = encode_prompt(body, encode)
        yield Asked(
            arrival=arrival,
            prompt=Literal(tuple(content)),
            num_output=_num_output(body, output, random),
            n=body.count("n", least=1, most=MAX_CHOICES) if body.values.get("n") is not None else 1,
            label=str(row.values.get("custom_id", "")),
        )


def _num_output(body: Row, output: Lengths | None, random: Random) -> int:
    most = next((name for name in ("max_completion_tokens", "max_tokens") if body.values.get(name) is not None), None)
    if output is None:
        if most is None:
            raise body.error("has no max_tokens: say how long answers get")
        return body.count(most, least=1)
    drawn = output.draw(random)
    return drawn if most is None else min(drawn, body.count(most, least=1))


def encode_prompt(body: Row, encode: Encode) -> list[int]:
    """The tokens of a completion's prompt, or of a chat's messages one after the other.

    Raises:
        InvalidOption: neither is there, or it is nothing one could ask.
    """
    prompt = body.values.get("prompt")
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        if not all(0 <= token < VOCAB_SIZE - 1 for token in prompt):
            raise body.error("a token of the prompt is no token")
        tokens = [token + 1 for token in prompt]  # 0 is what simulated answers consist of
    elif isinstance(prompt, list) and prompt:
        raise body.error("prompt must be a text or a list of tokens: one request a line")
    elif isinstance(prompt, str):
        tokens = encode(prompt)
    else:
        tokens = [token for text in _texts(body) for token in encode(text)]
    if not tokens:
        raise body.error("asks nothing")
    return tokens


def _texts(body: Row) -> Iterator[str]:
    for message in body.rows("messages"):
        content: Any = message.values.get("content")
        yield f"<{message.values.get('role', 'user')}>"
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            yield from (
                part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)
            )
