"""Sizes that are built in advance: the tokens of a step are rounded up to one of a few counts."""

from __future__ import annotations


def round_up(num_rows: int) -> int:
    """The bucket that holds `num_rows` rows: exact up to 8, then four sizes for each doubling.

    Padding costs at most a fifth of a step. A finer grid would cost more at start than it saves later: each size that
    the device meets for the first time takes it 10 to 20 ms.
    """
    step = _step(num_rows - 1)
    return -(-num_rows // step) * step


def round_down(num_rows: int) -> int:
    """The largest bucket of at most `num_rows` rows."""
    step = _step(num_rows)
    return num_rows // step * step


def buckets_up_to(num_rows: int) -> list[int]:
    """Every bucket that steps of 1 to `num_rows` rows fall into, ascending."""
    sizes = [1]
    while sizes[-1] < num_rows:
        sizes.append(round_up(sizes[-1] + 1))
    return sizes


def _step(num_rows: int) -> int:
    """A quarter of the power of two at or below `num_rows`, at least 1."""
    return 1 << max(num_rows.bit_length() - 3, 0)
