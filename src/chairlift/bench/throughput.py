"""Offline throughput: many prompts through an `LLM` in this process, without a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from chairlift.bench.datasets import Sample
from chairlift.core.errors import ChairliftError
from chairlift.core.types import SamplingParams


class Output(Protocol):
    @property
    def token_ids(self) -> Sequence[int]: ...

    @property
    def error(self) -> str | None: ...


class Answer(Protocol):
    @property
    def prompt_token_ids(self) -> Sequence[int]: ...

    @property
    def outputs(self) -> Sequence[Output]: ...


class Generator(Protocol):
    """As much of `chairlift.LLM` as is measured."""

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        sampling_params: Sequence[SamplingParams],
        *,
        use_tqdm: bool,
    ) -> Sequence[Answer]: ...


@dataclass(frozen=True, slots=True)
class Throughput:
    """Figures of one run."""

    num_requests: int
    num_input_tokens: int
    num_output_tokens: int
    elapsed_s: float

    def to_json(self) -> dict[str, Any]:
        """The fields of `vllm bench throughput --output-json`, and output tokens apart."""
        num_tokens = self.num_input_tokens + self.num_output_tokens
        return {
            "elapsed_time": self.elapsed_s,
            "num_requests": self.num_requests,
            "total_num_tokens": num_tokens,
            "total_output_tokens": self.num_output_tokens,
            "requests_per_second": self.num_requests / self.elapsed_s,
            "tokens_per_second": num_tokens / self.elapsed_s,
            "output_tokens_per_second": self.num_output_tokens / self.elapsed_s,
        }

    def to_text(self) -> str:
        """One line."""
        result = self.to_json()
        return (
            f"Throughput: {result['requests_per_second']:.2f} requests/s, "
            f"{result['tokens_per_second']:.2f} total tokens/s, "
            f"{result['output_tokens_per_second']:.2f} output tokens/s"
        )


def measure_throughput(
    llm: Generator,
    samples: Sequence[Sample],
    *,
    ignore_eos: bool,
    clock: Callable[[], float],
    use_tqdm: bool = False,
) -> Throughput:
    """Generate every answer, greedily, as fast as the engine can; the model is loaded and warm before.

    Raises:
        ChairliftError: an answer failed: its tokens would be missing from the figures.
    """
    params = [
        SamplingParams(max_tokens=sample.num_output_tokens, temperature=0.0, ignore_eos=ignore_eos)
        for sample in samples
    ]
    begun = clock()
    answers = llm.generate([sample.prompt for sample in samples], params, use_tqdm=use_tqdm)
    elapsed = clock() - begun
    outputs = [output for answer in answers for output in answer.outputs]
    for output in outputs:
        if output.error is not None:
            raise ChairliftError(f"an answer failed: {output.error}")
    return Throughput(
        num_requests=len(answers),
        num_input_tokens=sum(len(answer.prompt_token_ids) for answer in answers),
        num_output_tokens=sum(len(output.token_ids) for output in outputs),
        elapsed_s=elapsed,
    )
