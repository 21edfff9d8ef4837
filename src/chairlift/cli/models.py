"""`chairlift models`: the models on this machine that have names."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chairlift.models.inventory import Entry

MAX_NOTE_LEN = 60


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "models",
        help="list the models on this machine",
        description="List the models that can be served by name: installed packages, and what was got from a hub "
        "(HF_HUB_CACHE). Files and folders elsewhere are served by their path.",
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON, sizes in bytes")
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Look at all of them."""
    from chairlift.models.hub_cache import cache_folder
    from chairlift.models.inventory import inventory

    entries = list(inventory(cache_folder()))
    if arguments.json:
        print(json.dumps([_facts(entry) for entry in entries], indent=2))
    elif entries:
        print("\n".join(_lines(entries)))
    else:
        print(f"None: chairlift pull org/name gets one into {cache_folder()}")
    return 0


def _facts(entry: Entry) -> dict[str, Any]:
    summary = entry.summary
    return {
        "name": entry.name,
        "source": entry.source,
        "path": str(entry.path),
        "file_bytes": entry.file_bytes,
        "architecture": None if summary is None else summary.architecture,
        "precision": None if summary is None else summary.precision,
        "num_parameters": None if summary is None else summary.num_parameters,
        "supported": summary is not None and summary.problem is None,
        "note": entry.note,
    }


def _lines(entries: list[Entry]) -> list[str]:
    from chairlift.models.files import shown_bytes

    rows = [["NAME", "SOURCE", "SIZE", "PARAMETERS", "ARCHITECTURE", "PRECISION", ""]]
    for entry in entries:
        facts = _facts(entry)
        note = entry.note or ""
        millions = (facts["num_parameters"] or 0) / 1e6
        rows.append(
            [
                entry.name,
                entry.source,
                shown_bytes(entry.file_bytes) if entry.file_bytes else "",
                f"{millions:,.1f} M" if millions else "",
                facts["architecture"] or "",
                facts["precision"] or "",
                note if len(note) <= MAX_NOTE_LEN else note[: MAX_NOTE_LEN - 3] + "...",
            ]
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
