#!/usr/bin/env python3
"""What sampling costs for each kind of row, in microseconds per row, beside the argmax that it cannot do without.

    .venv/bin/python benchmarks/sampling.py --rows 1 64 --vocab 49152

Logits fall with the logarithm of their rank, shuffled: about as spread as a small model's. `flat` rows are nearly even,
the worst case for top-p. Best of the repeats; one thread. Prints one JSON line for each kind and number of rows.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from chairlift.core.types import Request, SamplingParams
from chairlift.sampling import Sampler

KINDS = {
    "greedy": SamplingParams(temperature=0.0),
    "greedy, logprobs 5": SamplingParams(temperature=0.0, logprobs=5),
    "greedy, repetition penalty": SamplingParams(temperature=0.0, repetition_penalty=1.1),
    "temperature 1": SamplingParams(),
    "temperature 0.7": SamplingParams(temperature=0.7),
    "top-p 0.9": SamplingParams(top_p=0.9),
    "top-k 50": SamplingParams(top_k=50),
    "top-k 50, top-p 0.9": SamplingParams(top_k=50, top_p=0.9),
    "min-p 0.05": SamplingParams(min_p=0.05),
}


def best_us(call: Callable[[], object], repeats: int) -> float:
    """Shortest of the repeats, in microseconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times) * 1e6


def falling(rows: int, vocab: int, slope: float) -> NDArray[np.float32]:
    """Logits of -slope * log(rank) with some noise, each row in an order of its own."""
    random = np.random.default_rng(0)
    ranks = -slope * np.log(np.arange(1, vocab + 1))
    return np.stack([random.permutation(ranks + random.normal(size=vocab) / 2) for _ in range(rows)]).astype(np.float32)


def measure(kind: str, params: SamplingParams, logits: NDArray[np.float32], repeats: int) -> None:
    rows, vocab = logits.shape
    sampler, slots = Sampler(rows, vocab), np.arange(rows)
    logsumexp = np.log(np.exp(logits.astype(np.float64)).sum(axis=1)).astype(np.float32)
    prompt = list(range(100))
    for slot in range(rows):
        sampler.join(slot, Request(slot, prompt, params), 0, prompt)
    argmax = best_us(lambda: logits.argmax(axis=1), repeats)
    whole = best_us(lambda: sampler.sample(slots, logits, logsumexp), repeats)
    figures = {"us_per_row": round(whole / rows, 2), "argmax_us_per_row": round(argmax / rows, 2)}
    print(json.dumps({"kind": kind, "rows": rows, **figures}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    for rows in arguments.rows:
        logits = falling(rows, arguments.vocab, 1.3)
        for kind, params in KINDS.items():
            measure(kind, params, logits, arguments.repeats)
        flat = falling(rows, arguments.vocab, 0.05)
        measure("top-p 0.9, flat", KINDS["top-p 0.9"], flat, arguments.repeats)


if __name__ == "__main__":
    main()
