"""What a form costs: tokens per second of 32 answers at once, with a grammar each and without, in the same minutes.

Both kinds generate the same number of tokens from the same prompts, turn by turn; each turn gives a ratio, and the
median of the ratios is what counts. Three cases: all answers have one schema, each has its own, half of them are free.

    python benchmarks/structured_output.py [--turns 7] [--tokens 48]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

from chairlift import LLM, SamplingParams
from chairlift.core.structured import StructuredOutputs

NUM_ANSWERS = 32
BAR = 0.95


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


def rates(
    llm: LLM, form: Sequence[StructuredOutputs | None], num_tokens: int, temperature: float
) -> tuple[float, float]:
    """Of one batch of answers, all of which have exactly so many tokens: tokens per second of the clock, and of the
    processor."""
    prompts = [f"A list of {i + 20} people of the town of Altdorf, number {i}, as JSON:\n" for i in range(NUM_ANSWERS)]
    params = [
        SamplingParams(max_tokens=num_tokens, temperature=temperature, seed=i, ignore_eos=True, structured_outputs=each)
        for i, each in enumerate(form)
    ]
    begun, begun_cpu = time.perf_counter(), time.process_time()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    taken, taken_cpu = time.perf_counter() - begun, time.process_time() - begun_cpu
    counts = {len(output.outputs[0].token_ids) for output in outputs}
    if counts != {num_tokens}:
        raise SystemExit(f"answers of {counts} tokens, not of {num_tokens}")
    return NUM_ANSWERS * num_tokens / taken, NUM_ANSWERS * num_tokens / taken_cpu


def main() -> int:
    """Print the ratios; 0 if every median is within the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=48)
    arguments = parser.parse_args()
    within = True
    with LLM(arguments.model, max_num_seqs=NUM_ANSWERS, max_model_len=512, enable_prefix_caching=False) as llm:
        free: list[StructuredOutputs | None] = [None] * NUM_ANSWERS
        for temperature in (0.0, 1.0):
            for case in ("one schema", "own schemas", "half free"):
                rates(llm, forms(case), 16, temperature)
                ratios: list[float] = []
                cpu_ratios: list[float] = []
                per_s: list[float] = []
                for turn in range(arguments.turns):
                    order = (free, forms(case)) if turn % 2 else (forms(case), free)
                    measured = [rates(llm, form, arguments.tokens, temperature) for form in order]
                    without, formed = measured if turn % 2 else measured[::-1]
                    ratios.append(formed[0] / without[0])
                    cpu_ratios.append(formed[1] / without[1])
                    per_s.append(formed[0])
                ratio = statistics.median(ratios)
                within &= ratio >= BAR
                print(
                    f"temperature {temperature:g}, {case:11s}: {statistics.median(per_s):5.0f} tokens/s, "
                    f"{ratio:.3f} of free text, {statistics.median(cpu_ratios):.3f} by processor time "
                    f"({' '.join(f'{one:.3f}' for one in ratios)})",
                    flush=True,
                )
    print(json.dumps({"within_5_percent": within}))
    return 0 if within else 1


if __name__ == "__main__":
    raise SystemExit(main())
