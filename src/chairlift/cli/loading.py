"""Saying on a terminal that a model is being loaded: seconds of silence look like a hang."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_ERASE_LINE = "\r\x1b[K"


@contextmanager
def loading(model: str, terminal: TextIO) -> Iterator[None]:
    """Show a line while the block runs, and take it away; nothing where `terminal` is none."""
    if not terminal.isatty():
        yield
        return
    terminal.write(f"Loading {model} ...")
    terminal.flush()
    try:
        yield
    finally:
        terminal.write(_ERASE_LINE)
        terminal.flush()
