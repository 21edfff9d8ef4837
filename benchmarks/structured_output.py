"""What a form costs: the time of a step that samples 32 answers, with a grammar each and without.

Sixty-four answers are under way on one device, half of them with a form. Steps of the one half and of the other take
turns, so that both meet the same machine; each pair gives a ratio, and the median of the ratios is what counts. Three
cases: all answers have one schema, each has its own, half of them are free after all.

    python benchmarks/structured_output.py [--steps 200]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

from chairlift.core.structured import StructuredOutputs
from chairlift.core.types import Chunk, Join, Request, SamplingParams, StepPlan
from chairlift.grammars.store import Checked
from chairlift.worker.build import LoadedModel, load
from chairlift.worker.options import EngineOptions

NUM_ANSWERS = 32
MAX_MODEL_LEN = 512
JOINS_PER_STEP = 8
BAR = 1.05


def schema(name: str) -> dict[str, Any]:
    """People with what they are known for: text, numbers, choices, lists, of any length."""
    person = {
        "type": "object",
        "properties": {
            name: {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "role": {"enum": ["engineer", "artist", "teacher", "doctor"]},
            "likes": {"type": "array", "items": {"type": "string"}, "minItems": 2},
        },
        "required": [name, "age", "role", "likes"],
        "additionalProperties": False,
    }
    return {"type": "array", "items": person, "minItems": 20}


def forms(case: str) -> list[StructuredOutputs | None]:
    """What each answer has to be."""
    if case == "one schema":
        return [StructuredOutputs(json=json.dumps(schema("name")))] * NUM_ANSWERS
    each = [StructuredOutputs(json=json.dumps(schema(f"name{i}"))) for i in range(NUM_ANSWERS)]
    return [*each] if case == "own schemas" else [form if i % 2 else None for i, form in enumerate(each)]


class Device:
    """A loaded model whose slots are all taken, the first half by free answers: slot i speaks of i mod 32 people."""

    def __init__(self, loaded: LoadedModel, forms: Sequence[StructuredOutputs | None], temperature: float) -> None:
        self._executor = loaded.executor
        self._num_plans = 0
        shape = loaded.executor.cache_shape
        blocks_per_row = -(-MAX_MODEL_LEN // shape.block_size)
        for first in range(0, 2 * NUM_ANSWERS, JOINS_PER_STEP):
            plan = self._plan()
            plan.leaves = list(range(first, first + JOINS_PER_STEP))
            for slot in plan.leaves:
                prompt = loaded.text.tokenizer.encode(f"{slot % NUM_ANSWERS + 10} people of Altdorf, as JSON:\n")
                request = Request(
                    slot,
                    prompt,
                    SamplingParams(
                        max_tokens=None,
                        temperature=temperature,
                        seed=slot % NUM_ANSWERS,
                        ignore_eos=True,
                        structured_outputs=forms[slot],
                    ),
                    eos_token_ids=loaded.text.eos_token_ids,
                )
                wait_for_grammar(loaded, request)
                plan.joins.append(Join(slot, request, 0, prompt))
                plan.block_slots += [slot] * blocks_per_row
                plan.block_ids += range(slot * blocks_per_row, (slot + 1) * blocks_per_row)
                plan.chunks.append(Chunk(slot, 0, len(prompt), samples=True))
                plan.num_chunk_tokens += len(prompt)
            self._run(plan)

    def step(self, slots: range) -> tuple[float, float]:
        """One token for each: seconds of the clock, and of the processor on this thread."""
        plan = self._plan()
        plan.decodes = list(slots)
        begun, begun_cpu = time.perf_counter(), time.thread_time()
        self._run(plan)
        return time.perf_counter() - begun, time.thread_time() - begun_cpu

    def _plan(self) -> StepPlan:
        self._num_plans += 1
        return StepPlan(self._num_plans)

    def _run(self, plan: StepPlan) -> None:
        errors = self._executor.submit(plan).result().errors
        if errors:
            raise SystemExit(f"answers failed: {errors}")


def wait_for_grammar(loaded: LoadedModel, request: Request) -> None:
    told: SimpleQueue[Checked] = SimpleQueue()
    loaded.grammars.release(request.id)
    checked = loaded.grammars.ask(request, told.put) or told.get()
    if checked.error is not None:
        raise SystemExit(checked.error)


def measure(loaded: LoadedModel, case: str, temperature: float, num_steps: int) -> float:
    """Print what a case costs; the ratio that counts."""
    device = Device(loaded, [None] * NUM_ANSWERS + forms(case), temperature)
    free, formed = range(NUM_ANSWERS), range(NUM_ANSWERS, 2 * NUM_ANSWERS)
    steps: dict[range, list[tuple[float, float]]] = {free: [], formed: []}
    for place in range(num_steps):
        for slots in (free, formed) if place % 2 else (formed, free):
            steps[slots].append(device.step(slots))
    ratio, cpu_ms = (
        statistics.median(ratios)
        for ratios in (
            [ours[0] / theirs[0] for ours, theirs in zip(steps[formed], steps[free], strict=True)],
            [1000 * (ours[1] - theirs[1]) for ours, theirs in zip(steps[formed], steps[free], strict=True)],
        )
    )
    quiet = [1000 * statistics.quantiles([wall for wall, _ in steps[kind]], n=10)[0] for kind in (formed, free)]
    print(
        f"temperature {temperature:g}, {case:11s}: {ratio:.3f} of a free step ({cpu_ms:+.2f} ms of this thread); "
        f"the fastest tenth: {quiet[0]:.1f} and {quiet[1]:.1f} ms, {quiet[0] / quiet[1]:.3f}",
        flush=True,
    )
    return ratio


def main() -> int:
    """Print the ratios; 0 if all are within the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    loaded = load(
        EngineOptions(
            model=arguments.model,
            max_num_seqs=2 * NUM_ANSWERS,
            max_model_len=MAX_MODEL_LEN,
            max_num_batched_tokens=256,
            kv_cache_memory_bytes=2 << 30,
        )
    )
    try:
        ratios = [
            measure(loaded, case, temperature, arguments.steps)
            for temperature in (0.0, 1.0)
            for case in ("one schema", "own schemas", "half free")
        ]
    finally:
        loaded.grammars.close()
    print(json.dumps({"worst_ratio": round(max(ratios), 3), "within_5_percent": max(ratios) <= BAR}))
    return 0 if max(ratios) <= BAR else 1


if __name__ == "__main__":
    raise SystemExit(main())
