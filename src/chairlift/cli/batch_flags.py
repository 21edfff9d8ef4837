"""The flags that say whether a server keeps files and batches, and how much of them."""

from __future__ import annotations

import argparse
from typing import Any

from chairlift.cli.numbers import count


def add_batch_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of `/v1/files` and `/v1/batches`."""
    group = parser.add_argument_group("batches")
    group.add_argument(
        "--batch-dir",
        metavar="DIR",
        help="folder for files and batches, which are answered when nobody else wants the engine; without one there "
        "are none",
    )
    group.add_argument(
        "--max-batch-file-bytes",
        type=count,
        default=128 << 20,
        metavar="N",
        help="largest file that may be sent (default: %(default)s)",
    )
    group.add_argument(
        "--max-batch-bytes",
        type=count,
        default=1 << 30,
        metavar="N",
        help="most bytes of all files of one API key, results included (default: %(default)s)",
    )


def batch_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What these flags said, by the names of `ServerOptions`."""
    names = ("batch_dir", "max_batch_file_bytes", "max_batch_bytes")
    return {name: getattr(arguments, name) for name in names}
