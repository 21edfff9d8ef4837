"""What the graph alone gives for the steps of an `LLM` run, and how near that is to the machine's limits.

    python benchmarks/graph.py [--concurrency 1 8 64] [--prompt-tokens 36] [--output-tokens 64]

The real scheduler plans the steps; only the device calls (body and head) are timed. `undisturbed` takes each step from
the run where it was fastest: what a quiet machine would give. Then single steps of one kind, with their share of the
int8 rate and of the memory bandwidth that were measured on this machine in the same minute.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import Type
from openvino import opset13 as op

from chairlift.core.scheduler import Scheduler
from chairlift.core.types import Limits, Request, SamplingParams, StepResult
from chairlift.executors.openvino.attention import parameter
from chairlift.executors.openvino.buckets import round_up
from chairlift.executors.openvino.executor import OpenVINOExecutor
from chairlift.executors.openvino.inputs import Rows, StepInputs, num_outputs
from chairlift.executors.openvino.options import ExecutorOptions
from chairlift.executors.openvino.program import MAX_HEAD_ROWS, Program
from chairlift.models import ModelConfig, open_model, resolve
from chairlift.sampling import Sampler

MAX_NUM_SEQS = 64


def device_seconds(program: Program, inputs: StepInputs) -> tuple[float, list[int]]:
    """Seconds of body and head for a step, and its most likely tokens."""
    begun = time.perf_counter()
    program.start(inputs)
    hidden = program.hidden_states()
    seconds = time.perf_counter() - begun
    tokens: list[int] = []
    for first in range(0, len(inputs.slots), MAX_HEAD_ROWS):
        begun = time.perf_counter()
        logits = program.logits(hidden[first : min(first + MAX_HEAD_ROWS, len(inputs.slots))])
        seconds += time.perf_counter() - begun
        tokens += logits.argmax(axis=1).tolist()
    return seconds, tokens


def run(
    program: Program, limits: Limits, config: ModelConfig, concurrency: int, sizes: tuple[int, int]
) -> NDArray[np.float64]:
    """Device seconds of every step that `concurrency` requests of (prompt, output) tokens take."""
    num_prompt, num_output = sizes
    scheduler = Scheduler(limits, program.cache_shape, vocab_size=config.vocab_size, enable_prefix_caching=False)
    params = SamplingParams(max_tokens=num_output, temperature=0.0, ignore_eos=True)
    rng = np.random.default_rng(0)
    for i in range(concurrency):
        scheduler.add(Request(i, rng.integers(100, config.vocab_size, num_prompt).tolist(), params))
    rows = Rows(limits.max_num_seqs, -(-limits.max_model_len // 32), 32)
    seconds: list[float] = []
    while (plan := scheduler.schedule(0.0)) is not None:
        rows.apply(plan)
        inputs = rows.assemble(plan, round_up(plan.num_tokens), round_up(num_outputs(plan, rows)))
        spent, tokens = device_seconds(program, inputs)
        seconds.append(spent)
        rows.advance(plan, inputs.slots, tokens)
        scheduler.commit(StepResult(tokens), 0.0)
    return np.array(seconds)


def step(num_rows: int, count: int, past_len: int) -> StepInputs:
    """A step of `num_rows` sequences with `count` new tokens each after `past_len`; every one samples."""
    num_blocks = -(-(past_len + count) // 32)
    starts = np.arange(num_rows + 1, dtype=np.int32)
    return StepInputs(
        token_ids=np.full(num_rows * count, 100, np.int32),
        positions=np.tile(np.arange(past_len, past_len + count, dtype=np.int32), num_rows),
        past_lens=np.full(num_rows, past_len, np.int32),
        starts=starts * np.int32(count),
        block_ids=np.arange(1, num_rows * num_blocks + 1, dtype=np.int32),
        block_starts=starts * np.int32(num_blocks),
        max_context_len=past_len + count,
        output_rows=starts[1:] * np.int32(count) - 1,
        slots=np.zeros(num_rows, np.int64),
        num_fillers=0,
        num_scored=0,
    )


# ---------------------------------------------------------------- the machine's limits


def best(function: Callable[[], object], repeats: int) -> float:
    """Seconds of the best of some runs."""
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        function()
        times.append(time.perf_counter() - begun)
    return min(times)


def int8_rate(num_threads: int) -> float:
    """Operations per second of one large product of int8 weights and activations: where the plugin is fastest."""
    size, rows, group = 2048, 512, 256
    rng = np.random.default_rng(0)
    weight = op.constant(rng.integers(-127, 128, (size, size), np.int8))
    scales = op.constant(np.full((size, 1), 0.01, np.float16))
    wide = op.convert(op.multiply(op.convert(weight, Type.f16), scales), Type.f32)
    x = parameter("x", Type.f32, [-1, size])
    model = ov.Model([op.result(op.matmul(x, wide, False, True))], [x], "peak")
    properties = {
        "INFERENCE_NUM_THREADS": num_threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(group),
    }
    request = ov.Core().compile_model(model, "CPU", properties).create_infer_request()
    data = rng.standard_normal((rows, size)).astype(np.float32)
    request.infer([data])
    return 2.0 * rows * size * size / best(lambda: request.infer([data], share_inputs=True, share_outputs=True), 30)


def read_bandwidth(num_threads: int) -> float:
    """Bytes per second that all threads together read from memory, far beyond the caches."""
    parts = [np.ones(1 << 26, np.float32) for _ in range(num_threads)]
    with ThreadPoolExecutor(num_threads) as pool:
        return sum(part.nbytes for part in parts) / best(lambda: list(pool.map(np.max, parts)), 8)


def num_weights(config: ModelConfig) -> tuple[int, int]:
    """Weights that a token is multiplied with: in the body, and in the head."""
    attention = config.hidden_size * (2 * config.q_size + 2 * config.kv_size)
    mlp = 3 * config.hidden_size * config.intermediate_size
    return config.num_layers * (attention + mlp), config.vocab_size * config.hidden_size


def main() -> None:
    parser = argparse.ArgumentParser(description="the graph alone, without scheduling and sampling")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--prompt-tokens", type=int, default=36)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--num-threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()

    options = ExecutorOptions(
        max_num_seqs=MAX_NUM_SEQS,
        max_model_len=2048,
        dtype=args.dtype,
        kv_cache_dtype=args.kv_cache_dtype,
        num_threads=args.num_threads,
    )
    model = open_model(resolve(args.model))
    program = Program(model, options)
    executor = OpenVINOExecutor(program, Sampler(MAX_NUM_SEQS, model.config.vocab_size), options)
    limits = Limits(MAX_NUM_SEQS, executor.max_num_batched_tokens, 2048)
    print(json.dumps({"max_num_batched_tokens": limits.max_num_batched_tokens}), flush=True)
    sizes = (args.prompt_tokens, args.output_tokens)
    for concurrency in args.concurrency:
        runs = [run(program, limits, model.config, concurrency, sizes) for _ in range(args.repeats)]
        tokens = concurrency * args.output_tokens
        report: dict[str, object] = {
            "concurrency": concurrency,
            "output_tokens_per_s": round(tokens / statistics.median(one.sum() for one in runs), 1),
            "undisturbed_output_tokens_per_s": round(tokens / np.minimum.reduce(runs).sum(), 1),
            "steps": len(runs[0]),
        }
        print(json.dumps(report), flush=True)

    peak, bandwidth = int8_rate(args.num_threads), read_bandwidth(args.num_threads)
    print(json.dumps({"int8_gops": round(peak / 1e9), "read_gb_per_s": round(bandwidth / 1e9, 1)}), flush=True)
    body, head = num_weights(model.config)
    for label, num_rows, count, past_len in (
        ("decode 1, context 72", 1, 1, 72),
        ("decode 8, context 72", 8, 1, 72),
        ("decode 64, context 72", 64, 1, 72),
        ("decode 64, context 1000", 64, 1, 1000),
        ("prefill 256", 1, 256, 0),
        ("prefill 7 x 36", 7, 36, 0),
    ):
        inputs = step(num_rows, count, past_len)
        seconds = best(lambda one=inputs: device_seconds(program, one), 12)  # type: ignore[misc]
        operations = 2.0 * (num_rows * count * body + num_rows * head)
        report = {
            "step": label,
            "ms": round(seconds * 1e3, 2),
            "tokens_per_s": round(num_rows * count / seconds),
            "share_of_int8_rate": round(operations / seconds / peak, 3),
            "share_of_bandwidth": round((body + head) * (1 + 2 / 64) / seconds / bandwidth, 3),
        }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
