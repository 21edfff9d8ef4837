"""What became of one text: its vector, or the error that stands in for it."""

from __future__ import annotations

from array import array
from itertools import repeat
from typing import Any

import msgspec

from chairlift.server.errors import ApiError

Outcome = bytes | ApiError
"""float32 numbers, little-endian, or why there are none."""


def numbers(vector: bytes) -> array[float]:
    """The float32 numbers of a vector."""
    values = array("f")
    values.frombytes(vector)
    return values


def cosine(one: bytes, two: bytes) -> float:
    """Of two vectors, 0 if one of them has no direction."""
    a, b = numbers(one), numbers(two)
    product = sum(map(float.__mul__, a, b))
    length = (sum(map(pow, a, repeat(2))) * sum(map(pow, b, repeat(2)))) ** 0.5
    return product / length if length else 0.0


def error_json(error: ApiError) -> dict[str, Any]:
    """The inside of an error's body, where it stands in for an item, with its status."""
    inner: dict[str, Any] = msgspec.json.decode(error.body())["error"]
    return inner | {"status": error.status}
