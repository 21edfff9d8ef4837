"""Files that benchmarks write their figures to."""

from __future__ import annotations

import json
from pathlib import Path

from chairlift.cli.config import flag_of
from chairlift.core.errors import InvalidOption


def check_path(path: Path | None) -> None:
    """Raises InvalidOption before anything is measured if the figures could not be written there afterwards."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise InvalidOption(f"cannot write {path}: {'it is a folder' if path.is_dir() else 'there is no such folder'}")


def check_apart(**paths: Path | None) -> None:
    """Raises InvalidOption if two flags, by their names, mean the same file: the later would take the other's place."""
    found: dict[Path, str] = {}
    for name, path in paths.items():
        if path is None:
            continue
        flag, place = flag_of(name), path.resolve()
        if (place in found and place.is_file()) or (place in found and not place.exists()):
            raise InvalidOption(f"{found[place]} and {flag} are the same file: {path}")
        found[place] = flag


def write_json(path: Path, value: object) -> None:
    try:
        path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidOption(f"cannot write {path}: {error}") from error
