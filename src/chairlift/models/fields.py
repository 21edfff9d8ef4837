"""Typed, bounded reading of the JSON objects that say what a model is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chairlift.core.errors import InvalidModel
from chairlift.models.files import shown

MAX_SIZE = 1 << 24
"""Bound of hidden, intermediate and vocabulary sizes: anything above is a damaged file."""
MAX_LAYERS = 1 << 12
MAX_HEADS = 1 << 12
MAX_EXPERTS = 1 << 10
MAX_CONTEXT = 1 << 31


class Fields:
    """Typed, bounded reading of one JSON object; `where` begins every error line."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    def error(self, message: str) -> InvalidModel:
        return InvalidModel(f"{self.where}: {message}")

    @property
    def names(self) -> list[str]:
        return list(self._values)

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self._values.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(f"{key} must be an integer between {low} and {high}, not {shown(value)}")
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        value = self._values.get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(f"{key} must be a number between {low} and {high}, not {shown(value)}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, not {shown(value)}")
        return value

    def fields(self, key: str) -> Fields | None:
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(f"{key} must be an object")
        return Fields(value, f"{self.where}: {key}")

    def overruled_by(self, other: Fields | None) -> Fields:
        """These, but for those that another object has too."""
        return self if other is None else Fields({**self._values, **other._values}, other.where)

    def has(self, key: str) -> bool:
        """It is there, be it as null."""
        return key in self._values

    def numbers(self, key: str, count: int, low: float, high: float) -> tuple[float, ...]:
        """A list of so many numbers."""
        values = self._values.get(key)
        if not isinstance(values, list) or len(values) != count:
            raise self.error(f"{key} must be a list of {count} numbers")
        return tuple(Fields({key: value}, self.where).number(key, low, high) for value in values)

    def token_ids(self, key: str, max_count: int = 64) -> tuple[int, ...]:
        """One token id or a list of them, as a tuple; () if absent."""
        value = self._values.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if len(ids) > max_count or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise self.error(f"{key} must be a token id or a list of at most {max_count}")
        return tuple(dict.fromkeys(ids))
