"""Numbers as people write them."""

from __future__ import annotations

import argparse
import math
import re
from fractions import Fraction

_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(i?[bB])?")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def count(text: str) -> int:
    """A whole number, also as 2k (thousand), 2K, 2G or 2GiB (powers of 1,024) or 2GB (decimal).

    Source: the spelling that users of vLLM know: lower case is decimal, upper case binary.

    Raises:
        argparse.ArgumentTypeError: anything else.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"not a number such as 4096, 8k or 2G: {text!r}")
    digits, unit, suffix = match.groups()
    binary = unit.isupper() if suffix is None else suffix.startswith("i")
    factor: int = (1024 if binary else 1000) ** _POWERS[unit.lower()]
    value = Fraction(digits) * factor
    if value.denominator != 1:
        raise argparse.ArgumentTypeError(f"not a whole number: {text!r}")
    return value.numerator


def named_limit(text: str) -> tuple[str, float] | None:
    """A name and a finite number of at least 0, such as ttft:200; None for anything else."""
    name, colon, value = text.partition(":")
    try:
        limit = float(value)
    except ValueError:
        return None
    return (name, limit) if colon and limit >= 0.0 and math.isfinite(limit) else None
