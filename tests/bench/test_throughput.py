from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from chairlift.bench.datasets import Sample
from chairlift.bench.throughput import measure_throughput
from chairlift.core.errors import ChairliftError
from chairlift.core.types import SamplingParams


@dataclass
class Output:
    token_ids: list[int]
    error: str | None = None


@dataclass
class Answer:
    prompt_token_ids: list[int]
    outputs: list[Output]


@dataclass
class Engine:
    """Takes two seconds, whatever is asked."""

    error: str | None = None
    now: float = 50.0
    asked: list[tuple[str | Sequence[int], SamplingParams]] = field(default_factory=list)

    def generate(
        self, prompts: Sequence[str | Sequence[int]], sampling_params: Sequence[SamplingParams], *, use_tqdm: bool
    ) -> list[Answer]:
        self.now += 2.0
        self.asked = list(zip(prompts, sampling_params, strict=True))
        return [
            Answer([1] * len(prompt), [Output([0] * (params.max_tokens or 0), self.error)])
            for prompt, params in self.asked
        ]


def test_figures() -> None:
    engine = Engine()
    samples = [Sample([1, 2, 3], 3, 5), Sample("ab", 1, 7)]
    result = measure_throughput(engine, samples, ignore_eos=True, clock=lambda: engine.now)
    assert result.to_json() == {
        "elapsed_time": 2.0,
        "num_requests": 2,
        "total_num_tokens": 17,
        "total_output_tokens": 12,
        "requests_per_second": 1.0,
        "tokens_per_second": 8.5,
        "output_tokens_per_second": 6.0,
    }
    assert result.to_text() == "Throughput: 1.00 requests/s, 8.50 total tokens/s, 6.00 output tokens/s"
    assert engine.asked == [
        ([1, 2, 3], SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)),
        ("ab", SamplingParams(max_tokens=7, temperature=0.0, ignore_eos=True)),
    ]


def test_a_failed_answer_makes_no_figures() -> None:
    with pytest.raises(ChairliftError, match="out of luck"):
        measure_throughput(Engine("out of luck"), [Sample("a", 1, 1)], ignore_eos=False, clock=lambda: 0.0)
