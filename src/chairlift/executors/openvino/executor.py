"""Computes steps on the CPU: one ragged call of the device for all tokens of a step, then the head, then sampling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from chairlift.core.errors import InvalidOption
from chairlift.core.types import StepPlan, StepResult, TokenLogprob
from chairlift.executors.loading import Report
from chairlift.executors.openvino.buckets import round_up
from chairlift.executors.openvino.inputs import Rows, StepInputs, num_outputs
from chairlift.executors.openvino.memory import cache_kind, check_memory
from chairlift.executors.openvino.options import ExecutorOptions
from chairlift.executors.openvino.program import MAX_HEAD_ROWS, Program
from chairlift.executors.openvino.rates import suggest_token_budget
from chairlift.models import Model
from chairlift.sampling import Sampler, score

SamplerFactory = Callable[[int, int], Sampler]
"""`sampler_factory(num_slots, vocab_size)`."""


class OpenVINOExecutor:
    """Keeps the rows of the running batch and computes them step by step.

    Ready when constructed: every size of step up to `max_num_batched_tokens` was run once. A larger step is refused:
    the plugin may want the weights in another layout for it, and what it would make that from was given back.
    """

    def __init__(self, program: Program, sampler: Sampler, options: ExecutorOptions) -> None:
        self.cache_shape = program.cache_shape
        self._program = program
        self._sampler = sampler
        max_blocks = -(-options.max_model_len // self.cache_shape.block_size)
        self._rows = Rows(options.max_num_seqs, max_blocks, self.cache_shape.block_size)
        program.lay_out()
        self.step_rates = program.measure_rates()
        self.max_num_batched_tokens = options.max_num_batched_tokens or suggest_token_budget(
            self.step_rates, options.max_num_seqs
        )
        # A bucket more than the budget, so that a step that uses all of it has room for companions: see `StepInputs`.
        self._max_step_tokens = round_up(self.max_num_batched_tokens + 1)
        program.warm_up(self._max_step_tokens)

    @classmethod
    def load(
        cls,
        model: Model,
        options: ExecutorOptions,
        sampler_factory: SamplerFactory = Sampler,
        report: Report | None = None,
    ) -> OpenVINOExecutor:
        """An executor that is ready to serve a model; `report` learns how far its weights are loaded.

        Raises:
            InvalidOption: these options, this machine or this OpenVINO do not go together.
            InvalidModel: a weight that cannot be put into the wanted precision.
        """
        wanted = options.max_num_batched_tokens
        if wanted is not None and wanted < options.max_num_seqs:
            raise InvalidOption(f"max_num_batched_tokens is {wanted}, less than max_num_seqs, {options.max_num_seqs}")
        check_memory(model, options, cache_kind(ov.Core(), options, model.config))
        return cls(
            Program(model, options, report), sampler_factory(options.max_num_seqs, model.config.vocab_size), options
        )

    def submit(self, plan: StepPlan) -> OpenVINOPending:
        """Begin a step; the device computes it while the caller does something else.

        Raises:
            ValueError: the step has more tokens than any that was run at start. It would read weights that are gone.
        """
        for slot in plan.leaves:
            self._sampler.leave(slot)
        for join in plan.joins:
            self._sampler.join(join.slot, join.request, join.choice, join.tokens)
        self._rows.apply(plan)
        if plan.num_tokens > self._max_step_tokens:
            raise ValueError(f"a step of {plan.num_tokens} tokens; at most {self._max_step_tokens} were prepared")
        num_tokens = min(round_up(plan.num_tokens + self._rows.num_companions(plan)), self._max_step_tokens)
        inputs = self._rows.assemble(plan, num_tokens, round_up(num_outputs(plan, self._rows)))
        self._program.start(inputs)
        return OpenVINOPending(self, plan, inputs)

    def complete(self, plan: StepPlan, inputs: StepInputs) -> StepResult:
        """Wait for the body of a step, then sample and score piece by piece: the logits are never all there at once.

        Those of fillers are computed, which is their price, and dropped.
        """
        slots = inputs.slots
        self._sampler.prepare(slots)
        hidden = self._program.hidden_states()
        result = StepResult([])
        num_rows = len(slots) + inputs.num_fillers
        for first in range(0, num_rows, MAX_HEAD_ROWS):
            logits = self._program.logits(hidden[first : min(first + MAX_HEAD_ROWS, num_rows)])
            piece = slots[first : first + MAX_HEAD_ROWS]
            if not len(piece):
                continue
            sampled = self._sampler.sample(piece, logits[: len(piece)], None)
            result.tokens += sampled.tokens
            result.logprobs.update(sampled.logprobs)
            result.errors.update(sampled.errors)
        if inputs.num_scored:
            result.prompt_logprobs = self._score(plan, hidden[num_rows : num_rows + inputs.num_scored])
        self._rows.advance(plan, slots, result.tokens)
        return result

    def _score(self, plan: StepPlan, hidden: NDArray[np.float32]) -> dict[int, list[TokenLogprob]]:
        """Log-probabilities of the prompt tokens that follow the scored positions, whose states are in `hidden`."""
        scores: dict[int, list[TokenLogprob]] = {}
        at = 0
        for chunk in plan.chunks:
            if not chunk.scores:
                continue
            targets = self._rows.targets(chunk)
            num_top = self._rows.num_prompt_logprobs(chunk.slot)
            entries = scores[chunk.slot] = []
            for first in range(0, len(targets), MAX_HEAD_ROWS):
                piece = targets[first : first + MAX_HEAD_ROWS]
                logits = self._program.logits(hidden[at : at + len(piece)])
                entries += score(logits, None, piece, num_top)
                at += len(piece)
        return scores


@dataclass(slots=True)
class OpenVINOPending:
    """A step that the device is computing."""

    executor: OpenVINOExecutor
    plan: StepPlan
    inputs: StepInputs

    def result(self) -> StepResult:
        """Wait for it, and sample.

        Raises:
            RuntimeError: the device failed.
        """
        return self.executor.complete(self.plan, self.inputs)
