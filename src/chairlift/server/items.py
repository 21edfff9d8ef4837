"""What is read for one vector: a text, token ids, or a pair of texts, and how it becomes tokens."""

from __future__ import annotations

from chairlift.core.errors import NeverFits
from chairlift.server.probe import hopeless
from chairlift.text.passages import Passage, PassageTokenizer

CHARS_PER_TOKEN = 4
"""Of ordinary text: what a text is taken for until it is encoded."""
PROBE_CHARS_PER_TOKEN = 64
"""A text with more characters per token than this is encoded by its beginning first."""

Item = str | list[int] | tuple[str, str]
"""A text, token ids, or a pair of texts."""


def estimated(item: Item, most: int) -> int:
    """About how many tokens an item has."""
    if isinstance(item, str):
        size = len(item) // CHARS_PER_TOKEN
    elif isinstance(item, list):
        size = len(item)
    else:
        size = sum(map(len, item)) // CHARS_PER_TOKEN
    return max(1, min(size, most))


def passage_of(item: Item, passages: PassageTokenizer, most: int, keep: int | None) -> Passage:
    """An item as tokens that the encoder can take; with `keep` it is cut to so many.

    Raises:
        InvalidRequest: it cannot be read, or is too long.
    """
    if isinstance(item, list):
        passage = passages.around(item if keep is None else item[:keep])
    elif isinstance(item, str):
        passage = passages.encode(_beginning(item, passages, most, keep), keep)
    else:
        first, second = (_beginning(text, passages, most, keep) for text in item)
        passage = passages.encode_pair(first, second, keep)
    if len(passage.tokens) > most:
        raise NeverFits(f"the text has {len(passage.tokens)} tokens; this model reads at most {most}", "input")
    return passage


def _beginning(text: str, passages: PassageTokenizer, most: int, keep: int | None) -> str:
    """A text, or as much of a very long one as decides what becomes of it.

    Raises:
        NeverFits: its beginning alone is too long.
    """
    found = hopeless(text, most, PROBE_CHARS_PER_TOKEN, lambda part: len(passages.encode(part).tokens))
    if found is None:
        return text
    beginning, num_tokens = found
    if keep is None:
        raise NeverFits(f"the text has more than {num_tokens} tokens; this model reads at most {most}", "input")
    return beginning
