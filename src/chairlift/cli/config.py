"""Defaults of flags from a YAML file and from the environment: flag, then environment, then file, then built in."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from chairlift.core.errors import InvalidOption

ENVIRONMENT_PREFIX = "CHAIRLIFT_"
MAX_CONFIG_BYTES = 1 << 20
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def flag_of(name: str) -> str:
    """The flag whose value is found under that name."""
    return f"--{name.replace('_', '-')}"


def read_text(path: Path, max_bytes: int) -> str:
    """The text of a file, or of a pipe that a shell gives as one.

    Raises:
        InvalidOption: it cannot be read, is longer than that (an endless device too), or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise InvalidOption(f"{path}: more than {max_bytes} bytes")
        return data.decode("utf-8")
    except OSError as error:
        raise InvalidOption(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidOption(f"{path}: cannot be read: {error}") from error


def file_defaults(parser: argparse.ArgumentParser, path: Path) -> dict[str, object]:
    """Values by destination from a YAML mapping of flag names, written with hyphens or underscores.

    Raises:
        InvalidOption: unreadable, not a mapping, a key that is no flag of this command, or a value it does not take.
    """
    text = read_text(path, MAX_CONFIG_BYTES)
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: the 99th of a month
        raise InvalidOption(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidOption(f"{path}: must map flag names to values")
    flags = dict(_flags(parser))
    values: dict[str, object] = {}
    for key, value in content.items():
        name = str(key).replace("_", "-")
        action = flags.get(name)
        if action is None:
            raise InvalidOption(f"{path}: unknown key {str(key)!r}")
        if value is not None:
            values[action.dest] = _coerce(name, action, value, f"{path}: {key}")
    return values


def environment_defaults(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> dict[str, object]:
    """Values by destination from variables such as CHAIRLIFT_MAX_NUM_SEQS.

    Raises:
        InvalidOption: a value that the flag does not take.
    """
    values: dict[str, object] = {}
    for name, action in _flags(parser):
        variable = ENVIRONMENT_PREFIX + name.upper().replace("-", "_")
        if variable in environment:
            values[action.dest] = _coerce(name, action, environment[variable], variable)
    return values


def _flags(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """The long names of a parser's flags without their hyphens in front, each with what argparse does for it."""
    for action in parser._actions:
        for option in action.option_strings:
            if option.startswith("--") and action.dest not in ("help", "version", "config"):
                yield option.removeprefix("--"), action


def _coerce(name: str, action: argparse.Action, value: object, source: str) -> object:
    """What argparse would have stored for this value of the flag `name`."""
    if action.nargs == 0:
        stored = not name.startswith("no-") if isinstance(action, argparse.BooleanOptionalAction) else action.const
        return stored if _switch(value, source) else not stored
    if isinstance(value, list):
        if not (action.nargs in ("+", "*") or isinstance(action, argparse._AppendAction)):
            raise InvalidOption(f"{source}: takes one value, not a list")
        return [_coerce_one(action, item, source) for item in value]
    one = _coerce_one(action, value, source)
    return [one] if action.nargs in ("+", "*") or isinstance(action, argparse._AppendAction) else one


def _switch(value: object, source: str) -> bool:
    word = str(value).lower()
    if word not in _TRUE | _FALSE:
        raise InvalidOption(f"{source}: must be true or false, not {value!r}")
    return word in _TRUE


def _coerce_one(action: argparse.Action, value: object, source: str) -> object:
    if isinstance(value, dict | list):
        raise InvalidOption(f"{source}: takes a plain value")
    result: object = str(value)
    if callable(action.type):
        try:
            result = action.type(str(value))
        except (ValueError, TypeError, argparse.ArgumentTypeError) as error:
            reason = str(error) if isinstance(error, argparse.ArgumentTypeError) else f"invalid value {value!r}"
            raise InvalidOption(f"{source}: {reason}") from error
    if action.choices is not None and result not in action.choices:
        raise InvalidOption(f"{source}: must be one of {', '.join(map(str, action.choices))}, not {value!r}")
    return result
