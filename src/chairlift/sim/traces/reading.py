"""Lines of trace files, plain or compressed with gzip, with the place of what is wrong in them."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from chairlift.core.errors import InvalidOption
from chairlift.sim.lengths import MAX_TOKENS

MAX_LINE_CHARACTERS = 64 << 20
LEAST_DATE_S = 1e8
"""A first arrival from here on is a date: no recording lasts three years."""


@contextmanager
def opened(path: Path) -> Iterator[TextIOWrapper]:
    """A text file, unpacked if it ends in .gz; the mark that some programs begin text with is no part of it.

    Raises:
        InvalidOption: it cannot be read, or is no text.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield TextIOWrapper(file, encoding="utf-8-sig", newline="")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidOption(f"{path}: cannot be read: {reason}") from error


@dataclass(frozen=True, slots=True)
class Row:
    """One object or line of a file; `where` begins every error about it."""

    values: Mapping[str, Any]
    where: str

    def error(self, message: str) -> InvalidOption:
        return InvalidOption(f"{self.where}: {message}")

    def number(self, *names: str) -> float:
        """The value under the first of these names that is there.

        Raises:
            InvalidOption: none is, or it is no finite number.
        """
        name = self._name(names)
        value = self.values[name]
        try:
            number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
        except (ValueError, OverflowError):
            number = None
        if number is None or not abs(number) < float("inf"):
            raise self.error(f"{name} must be a number, not {shortened(value)}")
        return number

    def count(self, *names: str, least: int = 0, most: int = MAX_TOKENS) -> int:
        """As `number`, a whole one of at least `least` and at most `most`."""
        number = self.number(*names)
        if number != int(number) or number < least:
            raise self.error(f"{self._name(names)} must be an integer of at least {least}, not {number:g}")
        if number > most:
            raise self.error(f"{self._name(names)} must be at most {most}, not {number:g}")
        return int(number)

    def rows(self, name: str) -> list[Row]:
        """A list of objects."""
        values = self.values.get(name, [])
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise self.error(f"{name} must be a list of objects")
        return [Row(value, f"{self.where}: {name}[{i}]") for i, value in enumerate(values)]

    def row(self, name: str) -> Row:
        """An object.

        Raises:
            InvalidOption: there is none.
        """
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise self.error(f"{name} must be an object")
        return Row(value, f"{self.where}: {name}")

    def _name(self, names: tuple[str, ...]) -> str:
        for name in names:
            if name in self.values:
                return name
        raise self.error(f"has no {' or '.join(names)}")


class Recorded:
    """Times of the lines of a file as they come: they may not go back, which would put a request into the past.

    They count from the first if `from_first`, or if that is a date: a file of seconds since 1970.
    """

    def __init__(self, *, from_first: bool = True) -> None:
        self._from_first = from_first
        self._first: float | None = None
        self._before: float | None = None

    def at(self, row: Row, time: float) -> float:
        """The arrival of a line, in seconds.

        Raises:
            InvalidOption: before the line above it, or before 0.
        """
        if self._first is None:
            self._first = time if self._from_first or time >= LEAST_DATE_S else 0.0
        arrival = time - self._first
        if self._before is None and arrival < 0.0:
            raise row.error("arrives before 0 s")
        if self._before is not None and arrival < self._before:
            raise row.error("arrives before the line above it: sort the file by time")
        self._before = arrival
        return arrival


def shortened(value: object) -> str:
    """A value as an error shows it."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**40 else "a number of many digits"
    return text if len(text) <= 60 else f"{text[:59]}…"


def rows(path: Path) -> Iterator[Row]:
    """The objects of a JSON lines file, or the lines of a CSV file, by what it begins with.

    Raises:
        InvalidOption: as for `json_rows` and `csv_rows`.
    """
    with opened(path) as file:
        begin = file.read(4096).lstrip()[:1]
    return json_rows(path) if begin in ("{", "[") or ".jsonl" in path.suffixes else csv_rows(path)


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    number = 0
    while line := file.readline(MAX_LINE_CHARACTERS):
        number += 1
        if len(line) == MAX_LINE_CHARACTERS:
            raise InvalidOption(f"{path}:{number}: longer than {MAX_LINE_CHARACTERS} characters")
        yield line


def json_rows(path: Path) -> Iterator[Row]:
    """The objects of a JSON lines file.

    Raises:
        InvalidOption: see `opened`; a line that is no JSON object, or too long to be one.
    """
    with opened(path) as file:
        for number, line in enumerate(_lines(file, path), 1):
            where = f"{path}:{number}"
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InvalidOption(f"{where}: not JSON: {error}") from error
            if not isinstance(value, dict):
                raise InvalidOption(f"{where}: not a JSON object")
            yield Row(value, where)


def csv_rows(path: Path, *, header: tuple[str, ...] | None = None) -> Iterator[Row]:
    """The lines of a CSV file by the names in its first line, or by `header` if it has none.

    Raises:
        InvalidOption: see `opened`; not CSV.
    """
    with opened(path) as file:
        reader = csv.DictReader(_lines(file, path), fieldnames=header)
        try:
            for values in reader:
                yield Row({k: v for k, v in values.items() if k is not None}, f"{path}:{reader.line_num}")
        except csv.Error as error:
            raise InvalidOption(f"{path}:{reader.line_num}: not CSV: {error}") from error
