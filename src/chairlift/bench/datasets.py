"""What is asked: prompts and how long their answers shall be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol

from chairlift.core.errors import InvalidOption

NOUNS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city name team minute idea body back parent face level office door "
    "health person art war history party result change morning reason research girl guy moment air teacher force order"
)
"""Common nouns, nearly all of them one token with the space before them in every tokenizer."""


class Tokenizer(Protocol):
    """As much of a tokenizer as lengths need."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Sample:
    """One thing to ask. `num_input_tokens` is an estimate without a tokenizer; the server's own count wins."""

    prompt: str | list[int]
    num_input_tokens: int
    num_output_tokens: int


def random_samples(
    num_samples: int,
    *,
    input_len: int,
    output_len: int,
    range_ratio: float = 0.0,
    prefix_len: int = 0,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
) -> list[Sample]:
    """Prompts of random words or, with a tokenizer, of random token ids.

    Lengths are even between (1 - range_ratio) and (1 + range_ratio) times the given ones; `prefix_len` words or
    tokens in front are the same in every prompt.

    Raises:
        InvalidOption: lengths that leave no prompt or no answer.
    """
    if input_len < 1 or output_len < 1 or prefix_len < 0 or not 0.0 <= range_ratio < 1.0:
        raise InvalidOption("random prompts need positive lengths and a --random-range-ratio from 0 to below 1")
    random = Random(seed)
    words = NOUNS.split()

    def length(middle: int) -> int:
        spread = int(middle * range_ratio)
        return max(1, random.randint(middle - spread, middle + spread))

    def pieces(count: int) -> list[int] | list[str]:
        if tokenizer is None:
            return random.choices(words, k=count)
        return [random.randrange(tokenizer.vocab_size) for _ in range(count)]

    prefix = pieces(prefix_len)
    samples = []
    for _ in range(num_samples):
        body = [*prefix, *pieces(length(input_len))]
        prompt = " ".join(map(str, body)) if tokenizer is None else [int(token) for token in body]
        samples.append(Sample(prompt, len(body), length(output_len)))
    return samples


def sharegpt_samples(
    path: Path, num_samples: int, *, output_len: int | None, seed: int, tokenizer: Tokenizer | None = None
) -> list[Sample]:
    """First turns of the conversations of a ShareGPT-style JSON file, in random order.

    The answer shall be as long as the one in the file unless `output_len` says otherwise. Without a tokenizer lengths
    are counted in words. Conversations shorter than two turns, and prompts or answers of fewer than four tokens, are
    left out.

    Raises:
        InvalidOption: no such file, another shape, or nothing in it to ask.
    """
    try:
        conversations = json.loads(path.read_text(encoding="utf-8"))
        turns = [
            [turn["value"] for turn in conversation.get("conversations", conversation.get("conversation", []))[:2]]
            for conversation in conversations
        ]
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise InvalidOption(f"{path} is not a ShareGPT-style file: {error!r}") from error
    Random(seed).shuffle(turns)
    samples = []
    for turn in turns:
        if len(turn) < 2 or not all(isinstance(text, str) for text in turn):
            continue
        num_input, num_output = (_count(text, tokenizer) for text in turn)
        if min(num_input, num_output) >= 4:
            samples.append(Sample(turn[0], num_input, output_len or num_output))
        if len(samples) == num_samples:
            break
    return _repeated(samples, num_samples, path)


def custom_samples(
    path: Path, num_samples: int, *, output_len: int | None, tokenizer: Tokenizer | None = None
) -> list[Sample]:
    """Lines of a JSONL file, in order: {"prompt": text or token ids, "output_tokens": number}.

    `output_len` overrides the file's lengths, and serves where it has none.

    Raises:
        InvalidOption: no such file, a line of another shape, or a length that nobody gave.
    """
    samples = []
    for where, line in _lines(path):
        prompt = _checked_prompt(line.get("prompt"), where)
        wanted = output_len or line.get("output_tokens")
        if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
            raise InvalidOption(f"{where}: no 'output_tokens', and no --custom-output-len either")
        samples.append(Sample(prompt, _count(prompt, tokenizer), wanted))
        if len(samples) == num_samples:
            break
    return _repeated(samples, num_samples, path)


def _lines(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"cannot read {path}: {error}") from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise InvalidOption(f"{path}:{number}: not JSON: {error}") from error
        if not isinstance(value, dict):
            raise InvalidOption(f"{path}:{number}: not a JSON object")
        yield f"{path}:{number}", value


def _checked_prompt(value: object, where: str) -> str | list[int]:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(type(token) is int for token in value):
        return value
    raise InvalidOption(f"{where}: 'prompt' must be text or a list of token ids, and not empty")


def _count(prompt: str | list[int], tokenizer: Tokenizer | None) -> int:
    if isinstance(prompt, list):
        return len(prompt)
    return len(prompt.split()) if tokenizer is None else len(tokenizer.encode(prompt))


def _repeated(samples: list[Sample], num_samples: int, path: Path) -> list[Sample]:
    """As many as were asked for: a short file starts again from the top."""
    if not samples:
        raise InvalidOption(f"{path} has nothing to ask")
    return [samples[i % len(samples)] for i in range(num_samples)]
