"""Flags of the model that reads texts for vectors: beside the one that generates, or served alone."""

from __future__ import annotations

import argparse
from typing import Any, get_args

from chairlift.cli.numbers import count, dtype
from chairlift.worker.options import DEFAULT_EMBEDDING_MAX_NUM_SEQS, DEFAULT_EMBEDDING_WAIT_MS, Dtype


def add_embedding_flags(parser: argparse.ArgumentParser) -> None:
    """Register the flags. All but the first also hold where MODEL itself is an encoder."""
    group = parser.add_argument_group(
        "embeddings", "Encoders (BERT, RoBERTa) read texts for vectors and scores, in batches that are gathered."
    )
    group.add_argument(
        "--embedding-model",
        metavar="MODEL",
        help="encoder beside the model that generates: a folder, or the name of an installed model package",
    )
    group.add_argument(
        "--embedding-dtype",
        type=dtype,
        choices=get_args(Dtype),
        default="float32",
        help="precision of its products (default: %(default)s; int8 is twice as fast and turns vectors by two degrees)",
    )
    group.add_argument(
        "--embedding-max-num-seqs",
        type=count,
        default=DEFAULT_EMBEDDING_MAX_NUM_SEQS,
        metavar="N",
        help="most texts of a batch (default: %(default)s)",
    )
    group.add_argument(
        "--embedding-max-num-batched-tokens",
        type=count,
        metavar="TOKENS",
        help="most tokens of a batch (default: measured, so that it stays short)",
    )
    group.add_argument(
        "--embedding-max-batch-wait-ms",
        type=float,
        default=DEFAULT_EMBEDDING_WAIT_MS,
        metavar="MS",
        help="how long the first of a batch waits for others while nothing is computed (default: %(default)s)",
    )


def embedding_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What these flags said, by the names of `EngineOptions`."""
    names = ("model", "dtype", "max_num_seqs", "max_num_batched_tokens", "max_batch_wait_ms")
    return {f"embedding_{name}": getattr(arguments, f"embedding_{name}") for name in names}
