"""`chairlift quantize`: write a model in the precision that it is computed in."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import get_args

from chairlift.cli.numbers import dtype
from chairlift.worker.options import AskedDtype


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "quantize",
        help="write a model in another precision, ready to load",
        description="Write a model into a new folder with its weights in the precision that they are computed in, and "
        "everything else that belongs to it. It answers as the model does that it was made of, in that precision, and "
        "loads by moving bytes.",
    )
    parser.add_argument("model", metavar="MODEL", help="a folder, a .gguf file, a package's name, or org/name")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to write, which must not exist")
    parser.add_argument(
        "--dtype",
        type=dtype,
        choices=get_args(AskedDtype),
        default="int8",
        help="precision of the weights (default: int8)",
    )
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Open, round, write."""
    from chairlift.executors.openvino.choice import choose_weights
    from chairlift.executors.openvino.quantizing import quantize_model
    from chairlift.models.files import shown_bytes
    from chairlift.worker.fetch import model_here
    from chairlift.worker.loading import LoadingBar

    model = model_here(arguments.model)
    weights = choose_weights(model, arguments.dtype)
    out: Path = arguments.out
    quantize_model(model, weights, out, LoadingBar(model.name, "quantizing"))
    size = shown_bytes(sum(path.stat().st_size for path in out.iterdir() if path.is_file()))
    print(f"{out}: {model.name} in {weights.reason or weights.dtype}, {size}: chairlift serve {shlex.quote(str(out))}")
    return 0
