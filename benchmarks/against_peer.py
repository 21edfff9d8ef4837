#!/usr/bin/env python3
"""`LLM` against OpenVINO GenAI's ContinuousBatchingPipeline, turn by turn, on the same file and the same prompts.

    python -m venv tmp/peer && tmp/peer/bin/pip install openvino-genai==2026.4.1.0 openvino-tokenizers==2026.4.1.0
    .venv/bin/python benchmarks/against_peer.py --peer-python tmp/peer/bin/python

Both are loaded once and take turns, so that whatever else the machine does falls on both: what counts is the ratio of
two neighbouring turns. Prints one JSON line per concurrency: output tokens per second of each (median of the turns
after one warm-up) and the median of the ratios. Greedy, end-of-sequence ignored, no prefix cache,
as in `llm_throughput.py`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable

from chairlift import LLM, SamplingParams
from chairlift.models import DEFAULT_MODEL, resolve

WORDS = ("The quick brown fox jumps over the lazy dog and then " * 200).split()

PEER = """
import json, sys, time
import openvino_genai as genai
scheduler = genai.SchedulerConfig()
scheduler.max_num_seqs, scheduler.max_num_batched_tokens, scheduler.cache_size = 256, 2048, 2
pipeline = genai.ContinuousBatchingPipeline(sys.argv[1], scheduler, "CPU", {})
config = genai.GenerationConfig()
config.max_new_tokens, config.ignore_eos, config.do_sample = int(sys.argv[2]), True, False
print("ready", flush=True)
for line in sys.stdin:
    prompts = json.loads(line)
    start = time.perf_counter()
    pipeline.generate(prompts, [config] * len(prompts))
    print(time.perf_counter() - start, flush=True)
"""


def start_peer(python: str, model: str, output_tokens: int) -> Callable[[list[str]], float]:
    """The peer in a process of its own; the function says how many seconds it took for these prompts."""
    process = subprocess.Popen(
        [python, "-c", PEER, model, str(output_tokens)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    stdin, stdout = process.stdin, process.stdout
    if stdin is None or stdout is None or stdout.readline() != "ready\n":
        raise SystemExit("the peer did not start")

    def run(prompts: list[str]) -> float:
        stdin.write(json.dumps(prompts) + "\n")
        stdin.flush()
        return float(stdout.readline())

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True, help="interpreter that has openvino_genai")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a .gguf file or an installed model package")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[64, 8, 1])
    parser.add_argument("--prompt-words", type=int, default=30)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()

    llm = LLM(arguments.model, enable_prefix_caching=False)
    params = SamplingParams(max_tokens=arguments.output_tokens, temperature=0.0, ignore_eos=True)

    def ours(prompts: list[str]) -> float:
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - start

    peer = start_peer(arguments.peer_python, str(resolve(arguments.model).path), arguments.output_tokens)
    for concurrency in arguments.concurrency:
        prompts = [" ".join([str(i), *WORDS][: arguments.prompt_words]) for i in range(concurrency)]
        turns = [(ours(prompts), peer(prompts)) for _ in range(arguments.turns + 1)][1:]
        tokens = concurrency * arguments.output_tokens
        line = {
            "concurrency": concurrency,
            "ours_tokens_per_s": round(tokens / statistics.median(turn[0] for turn in turns), 1),
            "peer_tokens_per_s": round(tokens / statistics.median(turn[1] for turn in turns), 1),
            "ratio": round(statistics.median(turn[1] / turn[0] for turn in turns), 2),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
