"""The flags that say who may enter a server, and what those are told who may not."""

from __future__ import annotations

import argparse
from typing import Any

from chairlift.cli.config import flag_of
from chairlift.cli.numbers import count
from chairlift.core.admission import DEFAULT_MAX_NUM_QUEUED_REQS

NONE = "none"

CAPS = {
    "max_num_queued_reqs": "most requests that wait for a slot; a request for n answers counts n times",
    "max_num_queued_tokens": "most prompt tokens of the requests that wait for a slot",
    "max_num_queued_reqs_per_principal": "most waiting requests of one API key",
    "max_num_queued_tokens_per_principal": "most prompt tokens of the waiting requests of one API key",
    "max_num_reqs_per_principal": "most requests of one API key in flight, waiting and running",
}


def cap(text: str) -> int | None:
    """A whole number as `count` reads it, or "none".

    Raises:
        argparse.ArgumentTypeError: anything else.
    """
    return None if text.strip().lower() == NONE else count(text)


def add_admission_flags(parser: argparse.ArgumentParser) -> None:
    """Caps, named as in vLLM where it has them."""
    group = parser.add_argument_group(
        "admission", "What is over a cap is refused at once, with how long to wait. A cap may be none."
    )
    for name, text in CAPS.items():
        default = DEFAULT_MAX_NUM_QUEUED_REQS if name == "max_num_queued_reqs" else None
        group.add_argument(
            flag_of(name),
            type=cap,
            default=default,
            metavar="N",
            help=f"{text} (default: {NONE if default is None else default})",
        )
    group.add_argument(
        "--overload-status",
        type=int,
        choices=(429, 503),
        default=429,
        help="HTTP status of a request that is refused for now (default: %(default)s)",
    )


def caps(arguments: argparse.Namespace) -> dict[str, Any]:
    """What these flags said, by the names of `AdmissionLimits`."""
    return {name: getattr(arguments, name) for name in CAPS}
