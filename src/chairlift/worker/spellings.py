"""Values of options as people write them: sizes with a unit, and other names of precisions."""

from __future__ import annotations

import re
from fractions import Fraction

from chairlift.core.errors import InvalidOption

_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(i?[bB])?", re.ASCII)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_DTYPES = {"float": "float32", "fp32": "float32", "bf16": "bfloat16"}
_HALVES = ("half", "float16", "fp16")


def count_of(text: str) -> int:
    """A whole number, also as 2k (thousand), 2K, 2G or 2GiB (powers of 1,024) or 2GB (decimal).

    Source: the spelling that users of vLLM know: lower case is decimal, upper case binary.

    Raises:
        InvalidOption: anything else.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise InvalidOption(f"not a number such as 4096, 8k or 2G: {text!r}")
    digits, unit, suffix = match.groups()
    binary = unit.isupper() if suffix is None else suffix.startswith("i")
    factor: int = (1024 if binary else 1000) ** _POWERS[unit.lower()]
    value = Fraction(digits) * factor
    if value.denominator != 1:
        raise InvalidOption(f"not a whole number: {text!r}")
    return value.numerator


def dtype_of(name: str) -> str:
    """The name of a precision for one of its other names; what is no such name comes back as it is.

    Raises:
        InvalidOption: sixteen bits of the kind that nothing is computed in here.
    """
    if name in _HALVES:
        raise InvalidOption(
            f"{name} is not there: bfloat16 takes as much memory, and its numbers may be as large as any"
        )
    return _DTYPES.get(name, name)
