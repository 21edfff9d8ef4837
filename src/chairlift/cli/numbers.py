"""Numbers and precisions as people write them, for flags."""

from __future__ import annotations

import argparse
import math

from chairlift.core.errors import InvalidOption
from chairlift.worker.spellings import count_of, dtype_of


def count(text: str) -> int:
    """A whole number, also with a unit, as in 2k or 2GiB.

    Raises:
        argparse.ArgumentTypeError: anything else.
    """
    try:
        return count_of(text)
    except InvalidOption as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def dtype(text: str) -> str:
    """A precision, also by its other names.

    Raises:
        argparse.ArgumentTypeError: one that is none of ours, with the nearest of them.
    """
    try:
        return dtype_of(text)
    except InvalidOption as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def named_limit(text: str) -> tuple[str, float] | None:
    """A name and a finite number of at least 0, such as ttft:200; None for anything else."""
    name, colon, value = text.partition(":")
    try:
        limit = float(value)
    except ValueError:
        return None
    return (name, limit) if colon and limit >= 0.0 and math.isfinite(limit) else None
