"""`chairlift replay`: feed journals to the scheduler once more, and see whether it plans the same."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from chairlift.core.errors import InvalidJournal

if TYPE_CHECKING:
    from chairlift.journal.replay import Replayed

EXIT_DIFFERENT = 1
MAX_LINE_BYTES = 256 << 20
"""Longer than any that is written: a file without lines, or an endless device, must not fill the memory."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "replay",
        help="replay a journal and compare every plan",
        description="Feed what --journal recorded to the scheduler once more and compare every plan. The exit status "
        "is 1 if one differs, and 2 for a file that cannot be used.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="segments of a journal; each stands alone")
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Replay each file; all of them, also after one that differs.

    Raises:
        InvalidJournal: a file that cannot be read, or is not a segment.
    """
    num_different = 0
    for path in arguments.files:
        replayed = replay_file(path)
        print(f"{path}: {summary(replayed)}", flush=True)
        num_different += replayed.difference is not None
    return EXIT_DIFFERENT if num_different else 0


def replay_file(path: Path) -> Replayed:
    """Replay one segment.

    Raises:
        InvalidJournal: see `run`.
    """
    from chairlift.journal.replay import replay

    try:
        with path.open("rb") as file:
            return replay(_lines(file))
    except OSError as error:
        raise InvalidJournal(f"{path}: {error.strerror or error}") from error
    except InvalidJournal as error:
        raise InvalidJournal(f"{path}: {error}") from error


def _lines(file: BinaryIO) -> Iterator[bytes]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES):
        number += 1
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            raise InvalidJournal(f"line {number}: more than {MAX_LINE_BYTES} bytes")
        yield line


def summary(replayed: Replayed) -> str:
    """What became of a segment: one line, or four if it differs."""
    segment, difference = replayed.segment, replayed.difference
    notes = [
        f"segment {segment.number}",
        *(["as digests"] if segment.digest else []),
        *(["after a gap"] if segment.gap else []),
        f"{replayed.num_inputs} inputs",
        f"{replayed.num_steps} steps",
        *(["the last line is incomplete"] if replayed.truncated else []),
        *([f"breaks at the end as it did then ({replayed.broken})"] if replayed.broken is not None else []),
    ]
    if difference is None:
        return f"{', '.join(notes)}: equal"
    return (
        f"{', '.join(notes)}: different in line {difference.line}, step {difference.step}: {difference.what}\n"
        f"  recorded: {difference.recorded}\n"
        f"  replayed: {difference.replayed}"
    )
