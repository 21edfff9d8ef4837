"""Times that others measured, as they lie in `../shared/traces`: kernels, batches of a paper, a server's profile."""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from chairlift.sim.calibrate.from_profile import steps_of_profile
from chairlift.sim.calibrate.measured import Measured
from chairlift.sim.cost import StepShape, Transformer

PROFILES = (
    "RTX4090__meta-llama__Llama-3.1-8B__tp1",
    "RTXPRO6000__meta-llama__Llama-3.1-8B__tp1",
    "RTXPRO6000__Qwen__Qwen3-32B__tp1",
)
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def shared_traces() -> Path | None:
    """The folder of traces beside this checkout, or beside one of its parents; None if there is none."""
    for parent in Path(__file__).resolve().parents:
        traces = parent / "shared" / "traces"
        if (traces / "README.md").is_file():
            return traces
    return None


def h100_bodies(traces: Path, model: Transformer, num_devices: int = 1) -> list[Measured]:
    """Steps of 1 to 2,048 tokens with nothing but the multiplications by weights, on one of one or two H100s."""
    path = traces / "llmservingsim" / "profile" / f"H100__Llama-3.1-8B__tp{num_devices}__layers_v0.csv.gz"
    layer_s: defaultdict[int, float] = defaultdict(float)
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            if row["layer_name"] in PROJECTIONS:
                layer_s[int(row["input"])] += float(row["latency(ns)"]) / 1e9
    return [
        Measured(StepShape(chunks=((0, tokens, False),)), model.num_layers * seconds, group=number)
        for number, (tokens, seconds) in enumerate(sorted(layer_s.items()))
    ]


@dataclass(frozen=True, slots=True)
class Sarathi:
    """Batch times of the paper's figures, in seconds.

    `batches` are single kinds of batch of many sizes (figure 2); contexts of decodes are not told, and taken as 0.
    `whole` and `mixed` are 1,024 tokens of prefill alone, and 1,021 with 3 decodes (table 2). `chunked` holds seconds
    by (tokens of a prompt, tokens of a chunk) (figure 9).
    """

    batches: list[Measured]
    whole_s: float
    mixed_s: float
    chunked_s: dict[tuple[int, int], float]


def sarathi(traces: Path) -> Sarathi:
    folder = traces / "sarathi"
    batches: list[Measured] = []
    for name in ("decode", "prefill"):
        for row in _rows(folder / f"osdi_figure-2_{name}.csv"):
            decodes, prefill = int(row["batch_num_decode_tokens"]), int(row["batch_num_prefill_tokens"])
            if row["Batch Id"] == "0.0":
                continue  # the first batch that the process ever ran: longer than one of twice its size
            shape = StepShape(decodes, 0, ((0, prefill, True),) if prefill else ())
            batches.append(Measured(shape, float(row["batch_execution_time"]), group=len(batches)))
    table = {int(row["batch_num_prefill_tokens"]): row for row in _rows(folder / "osdi_table-2_results.csv")}
    chunked = {
        (int(row["prefill_length"]), int(row["chunk_size"])): float(row["prefill_execution_time"]) / 1e3
        for row in _rows(folder / "osdi_figure-9_chunking-overhead.csv")
    }
    return Sarathi(
        batches,
        float(table[1024]["batch_execution_time"]) / 1e3,
        float(table[1021]["batch_execution_time"]) / 1e3,
        chunked,
    )


def vtc_steps(traces: Path) -> list[Measured]:
    """Llama-2-7B on an A10G, as S-LoRA profiled itself."""
    return steps_of_profile(traces / "vtc" / "cost_profile.json", 32)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
