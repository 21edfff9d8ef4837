"""How deep values are nested: objects, lists and tuples count, what they hold does not."""

from __future__ import annotations

import pytest

from chairlift.core.nesting import is_deeper


@pytest.mark.parametrize(
    ("value", "depth"),
    [(1, 0), ("text", 0), ([], 1), ({}, 1), ([1, "[["], 1), ({"a": ()}, 2), ([1, {"a": [[]]}, [2]], 4)],
)
def test_depth_is_that_of_the_deepest(value: object, depth: int) -> None:
    assert [is_deeper(value, most) for most in range(6)] == [depth > most for most in range(6)]


def test_neither_recursion_nor_a_circle_is_followed_to_its_end() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    circle: list[object] = []
    circle.append(circle)
    assert is_deeper(deep, 64) and is_deeper(circle, 64)
