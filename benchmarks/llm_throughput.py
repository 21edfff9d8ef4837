#!/usr/bin/env python3
"""Output tokens per second of `LLM`, with the prompts and the output of the peer's script; run both side by side.

    .venv/bin/python benchmarks/llm_throughput.py [MODEL] --concurrency 1 8 32 64

Prints one JSON line per concurrency: output tokens per second including prefill, median of the repeats after one
warm-up. Greedy, end-of-sequence ignored. The prefix cache is off: the repeats would find their prompts in it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from chairlift import LLM, SamplingParams
from chairlift.models import DEFAULT_MODEL


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--prompt-words", type=int, default=30)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--num-threads", type=int)
    arguments = parser.parse_args()

    start = time.perf_counter()
    llm = LLM(
        arguments.model,
        dtype=arguments.dtype,
        kv_cache_dtype=arguments.kv_cache_dtype,
        num_threads=arguments.num_threads,
        enable_prefix_caching=False,
    )
    print(json.dumps({"ready_s": round(time.perf_counter() - start, 2)}), flush=True)
    params = SamplingParams(max_tokens=arguments.output_tokens, temperature=0.0, ignore_eos=True)
    words = ("The quick brown fox jumps over the lazy dog and then " * 200).split()

    with llm:
        for concurrency in arguments.concurrency:
            prompts = [" ".join([str(i), *words][: arguments.prompt_words]) for i in range(concurrency)]
            rates = []
            for repeat in range(arguments.repeats + 1):
                start = time.perf_counter()
                outputs = llm.generate(prompts, params, use_tqdm=False)
                seconds = time.perf_counter() - start
                if repeat:
                    rates.append(sum(len(output.outputs[0].token_ids) for output in outputs) / seconds)
            rate = round(statistics.median(rates), 1)
            print(json.dumps({"concurrency": concurrency, "output_tokens_per_s": rate}), flush=True)


if __name__ == "__main__":
    main()
