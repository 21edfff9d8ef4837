"""Telling that a text is hopelessly long by its beginning: megabytes take seconds to encode, whoever sent them."""

from __future__ import annotations

from collections.abc import Callable


def hopeless(text: str, most: int, chars_per_token: int, num_tokens_of: Callable[[str], int]) -> tuple[str, int] | None:
    """A beginning that alone has more than twice `most` tokens, and how many; None if none short of the whole has.

    A beginning has about as many tokens as it has in the whole; twice of what fits is beyond that doubt. A text of at
    most `chars_per_token` characters for each token that fits is not looked at.
    """
    size = chars_per_token * most
    while size < len(text):
        beginning = text[:size]
        num_tokens = num_tokens_of(beginning)
        if num_tokens > 2 * most:
            return beginning, num_tokens
        size *= 4
    return None
