"""Prints the table of docs/models.md that says how far each family is from transformers, in each precision.

PYTHONPATH=tests python -m executors.family_table
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from chairlift.executors.forward import forward
from chairlift.executors.openvino.options import Dtype
from chairlift.models import Model, open_model, resolve
from executors.driving import divergence
from executors.families import CONFIGS, NUM_TOKENS, POSITIONS, expected, tokens_of, write_checkpoint
from executors.gguf_families import NAMES
from executors.test_families import run_executor

HEADER = """| checkpoint | `model_type` | also as GGUF | float32: largest error | bfloat16: mean KL | int8: mean KL |
|---|---|---|---|---|---|"""


def row(name: str, model: Model) -> str:
    """A line of the table."""
    exact = forward(model, tokens_of(name), NUM_TOKENS)
    decoded, chunked, whole = run_executor(model, name, "float32")
    after = [i for i, position in enumerate(POSITIONS) if position >= 22]
    stored = expected(name)
    errors = [
        decoded[[POSITIONS[i] - 22 for i in after]] - stored[after],
        np.concatenate((chunked, whole)) - stored[[POSITIONS.index(position) for position in (78, 79, 79)]],
    ]
    worst = max(float(np.abs(error).max()) for error in errors)
    rounded: list[Dtype] = ["bfloat16", "int8"]
    means = [f"{divergence(run_executor(model, name, dtype)[0], exact[22:]).mean():.4f}" for dtype in rounded]
    also = "yes" if name in NAMES else ""
    return f"| {name} | `{CONFIGS[name]['model_type']}` | {also} | {worst:.0e} | {' | '.join(means)} |"


def main() -> None:
    print(HEADER)
    with TemporaryDirectory() as folder:
        for name in CONFIGS:
            print(row(name, open_model(resolve(str(write_checkpoint(name, Path(folder) / name))))), flush=True)


if __name__ == "__main__":
    main()
