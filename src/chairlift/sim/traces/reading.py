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
from typing import Any

from chairlift.core.errors import InvalidOption

MAX_LINE_CHARACTERS = 64 << 20


@contextmanager
def opened(path: Path) -> Iterator[TextIOWrapper]:
    """A text file, unpacked if it ends in .gz.

    Raises:
        InvalidOption: it cannot be read, or is no text.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield TextIOWrapper(file, encoding="utf-8", newline="")
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
        value = self._value(names)
        try:
            number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
        except ValueError:
            number = None
        if number is None or not abs(number) < float("inf"):
            raise self.error(f"{names[0]} must be a number, not {value!r}")
        return number

    def count(self, *names: str, least: int = 0) -> int:
        """As `number`, a whole one of at least `least`."""
        number = self.number(*names)
        if number != int(number) or number < least:
            raise self.error(f"{names[0]} must be an integer of at least {least}, not {number:g}")
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

    def _value(self, names: tuple[str, ...]) -> Any:
        for name in names:
            if name in self.values:
                return self.values[name]
        raise self.error(f"has no {' or '.join(names)}")


def json_rows(path: Path) -> Iterator[Row]:
    """The objects of a JSON lines file.

    Raises:
        InvalidOption: see `opened`; a line that is no JSON object, or too long to be one.
    """
    with opened(path) as file:
        number = 0
        while line := file.readline(MAX_LINE_CHARACTERS):
            number += 1
            where = f"{path}:{number}"
            if len(line) == MAX_LINE_CHARACTERS:
                raise InvalidOption(f"{where}: longer than {MAX_LINE_CHARACTERS} characters")
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
        reader = csv.DictReader(file, fieldnames=header)
        try:
            for values in reader:
                yield Row({k: v for k, v in values.items() if k is not None}, f"{path}:{reader.line_num}")
        except csv.Error as error:
            raise InvalidOption(f"{path}:{reader.line_num}: not CSV: {error}") from error
