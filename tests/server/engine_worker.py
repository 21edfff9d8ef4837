"""The real worker (process, loop, scheduler, prefix cache) on a device without arithmetic: `engine_worker.py --fd N`.

A step takes `step_s`, and `token_s` for each token that it computes: what a cache saves can be seen from outside.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from chairlift.core.types import CacheShape, StepPlan
from chairlift.worker.process import Loaded, prepare_process, serve
from fakes import FakeExecutor
from worker.running import fake_engine


@dataclass(frozen=True)
class EngineOptions:
    step_s: float = 0.0
    token_s: float = 0.0
    max_model_len: int = 512
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    num_blocks: int = 2048
    block_size: int = 16


def load(options: EngineOptions) -> Loaded:
    def work(plan: StepPlan) -> None:
        num_tokens = len(plan.decodes) + len(plan.fillers) + plan.num_chunk_tokens
        if (duration_s := options.token_s * num_tokens) > 0:
            time.sleep(duration_s)

    cache = CacheShape(options.num_blocks, options.block_size)
    executor = FakeExecutor(cache, step_s=options.step_s, fail_step=work)
    engine = fake_engine(
        executor,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=options.max_model_len,
    )

    def close() -> None:
        if executor.violations:
            print(f"VIOLATIONS: {executor.violations[:3]}", file=sys.stderr, flush=True)

    return Loaded("fake", engine, engine.scheduler.limits, cache, close=close)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--options", default="{}")
    arguments = parser.parse_args()
    prepare_process()
    with socket.socket(fileno=arguments.fd) as sock:
        status = serve(sock, lambda: load(msgspec.json.decode(arguments.options, type=EngineOptions)))
    sys.exit(status)
