"""Computes single passes on the CPU: the texts of a step, sorted by length, in groups that are padded alike."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from chairlift.core.errors import InvalidOption
from chairlift.core.types import NO_SAMPLING, CacheShape, Join, Request, StepPlan, StepResult
from chairlift.executors.openvino.attention import check_release
from chairlift.executors.openvino.encoder_graph import build_encoder
from chairlift.executors.openvino.memory import check_encoder_memory
from chairlift.executors.openvino.options import EncoderOptions
from chairlift.executors.openvino.precision import encoder_properties
from chairlift.executors.pooling import pooled_vector
from chairlift.models.encoder import Encoder
from chairlift.models.encoder_config import EncoderConfig

GROUP_TOKENS = 256
"""Most tokens of a group, padding included, if it is more than one text: larger ones are more padding and no faster."""
MAX_TOKEN_BUDGET = 16384
PADDING = np.float32(-1e9)
"""Added to what a token would attend to: nothing is left of it."""

Group = list[Join]


class EncoderExecutor:
    """Computes the texts of a step and keeps nothing of them afterwards."""

    def __init__(self, encoder: Encoder, options: EncoderOptions) -> None:
        check_release()
        config = encoder.config
        if options.max_num_batched_tokens is not None and options.max_num_batched_tokens < options.max_model_len:
            raise InvalidOption(
                f"a step of {options.max_num_batched_tokens} tokens cannot hold a text of {options.max_model_len}: "
                "raise the token budget, or lower the longest text"
            )
        check_encoder_memory(encoder, options.dtype)
        self._config = config
        core = ov.Core()
        self._graph = build_encoder(encoder, options.dtype)
        compiled = core.compile_model(self._graph.model, "CPU", encoder_properties(core, options))
        self._request = compiled.create_infer_request()
        self._joined: dict[int, Join] = {}
        self.cache_shape = CacheShape(2 * options.max_num_seqs + 2, options.max_model_len)
        """A pass keeps nothing: a block holds the longest text, and there are more than there are slots."""
        rate = self._tokens_per_s(options.max_model_len)
        budget = int(min(max(rate * options.target_step_s, GROUP_TOKENS), MAX_TOKEN_BUDGET))
        self.max_num_batched_tokens = options.max_num_batched_tokens or max(
            budget, options.max_model_len, options.max_num_seqs
        )

    def submit(self, plan: StepPlan) -> EncoderPending:
        """Begin a step; the device computes its first group while the caller does something else."""
        for slot in plan.leaves:
            self._joined.pop(slot, None)
        for join in plan.joins:
            self._joined[join.slot] = join
        groups = grouped([self._joined[chunk.slot] for chunk in plan.chunks])
        if groups:
            self._start(groups[0])
        return EncoderPending(self, groups)

    def complete(self, groups: list[Group]) -> StepResult:
        """Wait for the groups one after the other. A group that fails is computed text by text: what is wrong with one
        is its own error, and nobody else's."""
        result = StepResult([])
        for i, group in enumerate(groups):
            try:
                outputs = self._outputs()
            except RuntimeError:
                outputs = self._one_by_one(group, result)
            if i + 1 < len(groups):
                self._start(groups[i + 1])
            for join, output in zip(group, outputs, strict=True):
                if join.slot in result.errors:
                    continue
                vector = pooled_vector(output, join.request.pooling, self._config)
                if np.isfinite(vector).all():
                    result.vectors[join.slot] = vector.astype("<f4").tobytes()
                else:
                    result.errors[join.slot] = "the model gave numbers that are not finite"
        return result

    def _start(self, group: Group) -> None:
        for name, value in padded(group, self._config).items():
            self._request.set_tensor(name, ov.Tensor(value))
        self._request.start_async()

    def _outputs(self) -> NDArray[np.float32]:
        """Vectors of the group that was started last, `[texts, outputs]`."""
        self._request.wait()
        return np.array(self._request.get_output_tensor(0).data)

    def _one_by_one(self, group: Group, result: StepResult) -> NDArray[np.float32]:
        outputs = np.zeros((len(group), self._config.num_outputs), np.float32)
        for i, join in enumerate(group):
            try:
                self._start([join])
                outputs[i] = self._outputs()[0]
            except RuntimeError:
                result.errors[join.slot] = "the device could not compute this text"
        return outputs

    def _tokens_per_s(self, max_model_len: int) -> float:
        """Tokens of a full group in a second, padding aside; the first runs of a size pay for being the first."""
        length = min(128, max_model_len)
        count = max(1, GROUP_TOKENS // padded_length(length))
        tokens = [0] * length
        group = [Join(0, Request(0, tokens, NO_SAMPLING), 0, tokens)] * count
        best = float("inf")
        for _ in range(3):
            begun = time.perf_counter()
            self._start(group)
            self._outputs()
            best = min(best, time.perf_counter() - begun)
        return count * padded_length(length) / best


@dataclass(slots=True)
class EncoderPending:
    """A step that the device is computing."""

    executor: EncoderExecutor
    groups: list[Group]

    def result(self) -> StepResult:
        """Wait for it."""
        return self.executor.complete(self.groups)


def grouped(joins: Sequence[Join]) -> list[Group]:
    """Texts sorted by length, in groups of at most `GROUP_TOKENS` tokens when padded to their longest."""
    groups: list[Group] = []
    for join in sorted(joins, key=lambda join: (len(join.tokens), join.slot)):
        last = groups[-1] if groups else None
        if last is not None and (len(last) + 1) * padded_length(len(join.tokens)) <= GROUP_TOKENS:
            last.append(join)
        else:
            groups.append([join])
    return groups


def padded_length(num_tokens: int) -> int:
    """Lengths are multiples of 8 up to 64, and of 16 above: few shapes, each of which the device must meet once."""
    unit = 8 if num_tokens <= 64 else 16
    return -(-num_tokens // unit) * unit


def padded(group: Group, config: EncoderConfig) -> dict[str, NDArray[np.generic]]:
    """Inputs of the graph for a group of texts."""
    longest = max(len(join.tokens) for join in group)
    rows, length = len(group), padded_length(longest)
    ids, types = np.zeros((rows, length), np.int32), np.zeros((rows, length), np.int32)
    mask = np.full((rows, 1, 1, length), PADDING, np.float32)
    weights = np.zeros((rows, 1, length), np.float32)
    for i, join in enumerate(group):
        count = len(join.tokens)
        ids[i, :count] = join.tokens
        mask[i, ..., :count] = 0
        if join.request.pooling is not None and join.request.pooling.num_first:
            types[i, join.request.pooling.num_first : count] = 1
        if config.head != "none" or config.pooling == "cls":
            weights[i, 0, 0] = 1
        elif config.pooling == "last":
            weights[i, 0, count - 1] = 1
        else:
            weights[i, 0, :count] = 1 / count
    positions = np.minimum(np.arange(length, dtype=np.int32), longest - 1)
    return {
        "token_ids": ids,
        "types": types,
        "positions": np.ascontiguousarray(positions[None] + np.int32(config.first_position)),
        "mask": mask,
        "weights": weights,
    }
