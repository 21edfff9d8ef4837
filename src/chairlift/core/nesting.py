"""How deep values of JSON are nested."""

from __future__ import annotations

_NESTS = (dict, list, tuple)


def is_deeper(value: object, most: int) -> bool:
    """Whether objects and lists are nested in more than `most` levels. Goes no deeper, and without recursion."""
    level = [value] if isinstance(value, _NESTS) else []
    for _ in range(most):
        inner: list[object] = []
        for one in level:
            if isinstance(one, dict):
                inner += one.values()
            elif isinstance(one, list | tuple):
                inner += one
        level = [one for one in inner if isinstance(one, _NESTS)]
    return bool(level)
