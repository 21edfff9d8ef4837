"""What each precision costs in quality: perplexity on English text, and how far its distributions are from float32's.

    python benchmarks/quality.py [--dtype int8 bfloat16] [--windows 40]

The text is the documentation strings of Python's standard library, cut into windows of 512 tokens that are computed
whole, each without a past. Per precision, one JSON line: perplexity and its distance from float32's, the share of
positions whose best token is the same, and mean and 99th percentile of the Kullback-Leibler divergence from float32, in
nats.
"""

from __future__ import annotations

import argparse
import ast
import json
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chairlift.executors.openvino.inputs import StepInputs
from chairlift.executors.openvino.options import ExecutorOptions
from chairlift.executors.openvino.program import MAX_HEAD_ROWS, Program
from chairlift.models import open_model, resolve
from chairlift.text import load_text

WINDOW = 512
Floats = NDArray[np.float64]


def english(min_chars: int) -> str:
    """Documentation strings of the standard library, in the order of file names, at least `min_chars` of them."""
    pieces: list[str] = []
    total = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="replace"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                # Long enough to be prose; the rest is signatures and one-liners.
                if len(text) > 400:
                    pieces.append(text)
                    total += len(text)
        if total > min_chars:
            break
    return "\n\n".join(pieces)


def whole(tokens: NDArray[np.int32]) -> StepInputs:
    """A step that computes one window from the beginning of the cache and gives the states of all its tokens."""
    count = len(tokens)
    positions = np.arange(count, dtype=np.int32)
    num_blocks = -(-count // 32)
    return StepInputs(
        token_ids=tokens,
        positions=positions,
        past_lens=np.zeros(1, np.int32),
        starts=np.array([0, count], np.int32),
        block_ids=np.arange(1, num_blocks + 1, dtype=np.int32),
        block_starts=np.array([0, num_blocks], np.int32),
        max_context_len=count,
        output_rows=positions,
        slots=np.zeros(0, np.int64),
        num_fillers=0,
        num_scored=count,
    )


def log_probs(logits: NDArray[np.float32]) -> Floats:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


@dataclass(slots=True)
class Tally:
    """What was seen of one precision: one number for each predicted token."""

    nats: list[Floats] = field(default_factory=list)
    same_best: list[NDArray[np.bool_]] = field(default_factory=list)
    divergence: list[Floats] = field(default_factory=list)

    def add(self, own: Floats, exact: Floats, targets: NDArray[np.int32]) -> None:
        self.nats.append(-own[np.arange(len(targets)), targets])
        self.same_best.append(own.argmax(axis=1) == exact.argmax(axis=1))
        self.divergence.append((np.exp(exact) * (exact - own)).sum(axis=1))

    def report(self, label: str, exact_perplexity: float) -> dict[str, object]:
        divergence = np.concatenate(self.divergence)
        return {
            "precision": label,
            "perplexity": round(self.perplexity(), 4),
            "perplexity_change_percent": round((self.perplexity() / exact_perplexity - 1) * 100, 3),
            "same_best_percent": round(float(np.concatenate(self.same_best).mean()) * 100, 2),
            "kl_mean": float(f"{divergence.mean():.3g}"),
            "kl_p99": float(f"{np.quantile(divergence, 0.99):.3g}"),
            "predictions": len(divergence),
        }

    def perplexity(self) -> float:
        return float(np.exp(np.concatenate(self.nats).mean()))


def main() -> None:
    parser = argparse.ArgumentParser(description="quality of each precision against float32")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "int8", "int4"])
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--windows", type=int, default=40)
    args = parser.parse_args()

    files = resolve(args.model)
    model = open_model(files)
    tokens = np.array(load_text(files).tokenizer.encode(english(args.windows * WINDOW * 6)), np.int32)
    windows = tokens[: args.windows * WINDOW].reshape(-1, WINDOW)

    def program(dtype: str, kv_cache_dtype: str) -> Program:
        options = ExecutorOptions(
            max_num_seqs=1,
            max_model_len=WINDOW,
            dtype=dtype,  # type: ignore[arg-type]
            kv_cache_dtype=kv_cache_dtype,  # type: ignore[arg-type]
        )
        return Program(model, options)

    exact = program("float32", "auto")
    others = {dtype: program(dtype, args.kv_cache_dtype) for dtype in args.dtype}
    tallies = {label: Tally() for label in ("float32", *others)}
    for window in windows:
        states = {}
        for label, one in (("float32", exact), *others.items()):
            one.start(whole(window))
            states[label] = one.hidden_states()
        for first in range(0, WINDOW - 1, MAX_HEAD_ROWS):
            last = min(first + MAX_HEAD_ROWS, WINDOW - 1)
            targets = window[first + 1 : last + 1]
            reference = log_probs(exact.logits(states["float32"][first:last]))
            tallies["float32"].add(reference, reference, targets)
            for label, one in others.items():
                tallies[label].add(log_probs(one.logits(states[label][first:last])), reference, targets)
    for label, tally in tallies.items():
        print(json.dumps(tally.report(label, tallies["float32"].perplexity())), flush=True)


if __name__ == "__main__":
    main()
