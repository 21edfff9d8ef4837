"""Every regular expression of a server takes time linear in what it reads (reliability D4).

Each is run, in the way in which it is used, on texts made to hurt it: its own characters repeated, with an end that
fits nothing.
"""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from test_source import SERVING, SOURCE, files_of

ANYWHERE = {"search", "sub", "subn", "split", "finditer", "findall"}
AT_START = {"match", "fullmatch"}

SMALL, LARGE = 4_000, 100_000
MAX_SMALL_S, MAX_LARGE_S = 0.01, 0.05


@dataclass(frozen=True)
class Found:
    """A pattern and how it is used."""

    place: str
    pattern: str | bytes
    use: str

    def run(self) -> Callable[[str], object]:
        compiled = re.compile(self.pattern)
        call: Callable[..., object] = getattr(compiled, "search" if self.use in ANYWHERE else self.use)
        return (lambda text: call(text.encode())) if isinstance(self.pattern, bytes) else call


def patterns() -> Iterator[Found]:
    """All that are written out, each with every use of it in its module."""
    for path in files_of(*SERVING, "cli"):
        text = path.read_text()
        if "re." not in text:
            continue
        tree = ast.parse(text)
        uses = {
            (node.func.value.id, node.func.attr)
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        }
        for node in ast.walk(tree):
            place = f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Assign) and (pattern := compiled(node.value, {"compile"})) is not None:
                (target,) = node.targets
                assert isinstance(target, ast.Name), place
                for name, use in sorted(uses):
                    if name == target.id and use in ANYWHERE | AT_START:
                        yield Found(place, pattern, use)
            elif isinstance(node, ast.Call) and (pattern := compiled(node, ANYWHERE | AT_START)) is not None:
                assert isinstance(node.func, ast.Attribute)
                yield Found(place, pattern, node.func.attr)


def compiled(node: ast.expr, functions: set[str]) -> str | bytes | None:
    """The pattern in a call of one of these functions of `re`, if it is written out."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
        return None
    if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "re" and node.func.attr in functions):
        return None
    first = node.args[0]
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str | bytes) else None


def texts(pattern: str | bytes, size: int) -> Iterator[str]:
    """What might hurt: each of its characters again and again, and pairs of them, and then something else."""
    written = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
    characters = sorted({*re.sub(r"\\.|\[\^|[\[\](){}*+?|^$.]", "", written), *'a0A_ \n".-/\\{<'})
    for unit in [*characters, *map("".join, zip(characters[::4], characters[1::4], strict=False))]:
        yield unit * (size // len(unit)) + "\x00"


def seconds(run: Callable[[str], object], text: str) -> float:
    """Of this thread, the least of three tries."""
    best = float("inf")
    for _ in range(3):
        began = time.thread_time()
        run(text)
        best = min(best, time.thread_time() - began)
        if best < MAX_SMALL_S / 10:
            break
    return best


ALL = sorted(set(patterns()), key=lambda found: (found.place, found.use))


def test_patterns_are_found() -> None:
    assert len(ALL) >= 12


@pytest.mark.parametrize("found", ALL, ids=[f"{found.place} {found.use}" for found in ALL])
def test_d4_time_is_linear(found: Found) -> None:
    run, times = found.run(), {}
    for text, large in zip(texts(found.pattern, SMALL), texts(found.pattern, LARGE), strict=True):
        times[large] = seconds(run, text)
        assert times[large] <= MAX_SMALL_S, (text[:5], text[-2:])
    worst = max(times, key=lambda large: times[large])
    assert seconds(run, worst) <= MAX_LARGE_S, (worst[:5], worst[-2:])


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "a+b"])
def test_what_is_not_linear_is_noticed(pattern: str) -> None:
    size = 18 if "(" in pattern else SMALL
    assert seconds(Found("", pattern, "search").run(), "a" * size) > MAX_SMALL_S
