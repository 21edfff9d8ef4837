"""The flags that say whether and how the engine is recorded."""

from __future__ import annotations

import argparse
from typing import Any

from chairlift.cli.numbers import count
from chairlift.journal.options import DEFAULT_MAX_BYTES, DEFAULT_MAX_SEGMENTS


def add_journal_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of the journal."""
    group = parser.add_argument_group("journal", "What was scheduled, and why, can be replayed by chairlift replay.")
    group.add_argument(
        "--journal",
        metavar="FILE",
        help="record every input of the scheduler, prompts and answers included; only you can read the file",
    )
    group.add_argument(
        "--journal-digest",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="keyed hashes in the place of tokens and names: replays alike, and shows no content (default: off)",
    )
    group.add_argument(
        "--journal-max-bytes",
        type=count,
        default=DEFAULT_MAX_BYTES,
        metavar="BYTES",
        help="size at which the next segment begins (default: 64M)",
    )
    group.add_argument(
        "--journal-segments",
        type=count,
        default=DEFAULT_MAX_SEGMENTS,
        metavar="N",
        help="segments kept: FILE, FILE.1, FILE.2 ... (default: %(default)s)",
    )


def journal_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What these flags said, as options of the engine."""
    names = ("journal", "journal_digest", "journal_max_bytes", "journal_segments")
    return {name: getattr(arguments, name) for name in names}
