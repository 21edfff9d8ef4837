#!/usr/bin/env python3
"""How equal the answers are whatever the batch, the chunks, the cache and the preemptions; one JSON line per question.

    .venv/bin/python benchmarks/equality.py [--model smollm2-135m-instruct] [--requests 64] [--dtype float32 int8]

Prompts are beginnings of Python's documentation, 33 to 100 tokens long, two of each topic; ways are those of
`tests/integration/variants.py`, against the plainest one: each request alone, its prompt whole, nothing cached.

    texts       greedy, 34 tokens, float32: sequences that are the same in percent, and for those that are not the
                largest gap between the two best logits where they part
    logits      float32: largest distance from the NumPy reference
    divergence  of the default precision from its own plainest run at the same tokens, mean and largest, in nats
    neighbours  rows of logits that stay the same bit for bit when only the neighbours change
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from chairlift.executors.openvino.options import Dtype
from chairlift.models import DEFAULT_MODEL, Model, open_model, resolve
from chairlift.text import load_text
from integration.equality import (
    GREEDY,
    Subject,
    compare_texts,
    divergences,
    english_requests,
    equal_bits,
    logit_errors,
)
from integration.variants import check_way, variants

BUDGET = 128
WAYS = variants(64, BUDGET, tight_blocks=20)


def say(question: str, **figures: object) -> None:
    print(json.dumps({"question": question, **figures}), flush=True)


def measure(model: Model, dtype: Dtype, num_requests: int) -> None:
    subject = Subject.load(model, dtype, max_num_seqs=64, max_num_batched_tokens=BUDGET)
    text = load_text(model)
    if dtype == "float32":
        requests = english_requests(text, num_requests, replace(GREEDY, max_tokens=34), longest=100)
        for way, texts in compare_texts(subject, requests, WAYS).items():
            say(
                "texts",
                dtype=dtype,
                way=way,
                sequences=texts.num_cases,
                percent_equal=texts.percent_equal,
                max_gap=texts.max_gap,
            )
        if num_requests >= 32:
            for each in WAYS:
                check_way(each, subject.outcomes[each.name], subject.executor.cache_shape.block_size)
        few = english_requests(text, 8, replace(GREEDY, max_tokens=16), longest=100)
        for way, error in logit_errors(subject, few, WAYS).items():
            say("logits", dtype=dtype, way=way, max_error=error)
    else:
        requests = english_requests(text, num_requests, GREEDY, longest=100)
        for way, found in divergences(subject, requests, WAYS).items():
            say("divergence", dtype=dtype, way=way, mean=found.mean, max=found.worst, tokens=found.num_tokens)
    prompt = english_requests(text, 1, GREEDY, longest=100)[0].prompt
    for num_neighbours in (1, 7, 63):
        num_equal, num_rows = equal_bits(subject, prompt, num_neighbours)
        say("neighbours", dtype=dtype, neighbours=num_neighbours, rows=num_rows, rows_equal=num_equal)


def main() -> None:
    parser = argparse.ArgumentParser(description="equality of answers over ways to compute them")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--dtype", nargs="+", default=["float32", "int8"])
    args = parser.parse_args()
    model = open_model(resolve(args.model))
    for dtype in args.dtype:
        measure(model, dtype, args.requests)


if __name__ == "__main__":
    main()
