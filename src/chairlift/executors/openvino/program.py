"""A model compiled for this machine: its two graphs, its cache, and the sizes that were run once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from chairlift.core.types import CacheShape
from chairlift.executors.loading import LoadedBytes, Report
from chairlift.executors.openvino.attention import BLOCK_SIZE, check_release, self_test
from chairlift.executors.openvino.buckets import buckets_up_to, round_up
from chairlift.executors.openvino.cache import allocate, cache_ports, num_cache_blocks
from chairlift.executors.openvino.feed import Feed
from chairlift.executors.openvino.graph import (
    attention_shapes,
    build_body,
    build_head,
    num_packed_bytes,
    pack_layers,
)
from chairlift.executors.openvino.inputs import StepInputs, uniform_inputs
from chairlift.executors.openvino.options import ExecutorOptions
from chairlift.executors.openvino.precision import Properties, choose_precision
from chairlift.executors.openvino.rates import TARGET_STEP_S, StepRates, fit_rates
from chairlift.executors.openvino.weights import Arena, trim_heap
from chairlift.models import Model

MAX_HEAD_ROWS = 64
"""Rows of logits computed at a time. Larger pieces are no faster and take `vocab_size` floats of memory a row."""


class Head:
    """Hidden states to logits, a piece at a time. Every size of piece was run once when it is constructed."""

    def __init__(
        self, core: ov.Core, model: Model, options: ExecutorOptions, properties: Properties, loaded: LoadedBytes
    ) -> None:
        packed = Arena()
        graph = build_head(model, options.dtype, options.head_group, packed, loaded, options.wide_weights)
        self._request = core.compile_model(graph, "CPU", properties).create_infer_request()
        self._feed = Feed(self._request)
        for size in buckets_up_to(MAX_HEAD_ROWS):
            self.logits(np.zeros((size, model.config.hidden_size), np.float32))
        packed.release()

    def logits(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits of at most `MAX_HEAD_ROWS` hidden states, `[rows, vocab]`, valid until the next call."""
        num_rows = len(hidden)
        size = round_up(num_rows)
        if size != num_rows:
            hidden = np.concatenate([hidden, np.zeros((size - num_rows, hidden.shape[1]), np.float32)])
        self._feed.set("hidden", hidden)
        self._request.start_async()
        self._request.wait()
        logits: NDArray[np.float32] = self._request.get_output_tensor(0).data
        return logits[:num_rows]


class Program:
    """One step at a time: `start`, `hidden_states`, then `logits` of as many rows as wanted, in pieces.

    The cache's tensors have one block more than `cache_shape` says: the first, `SCRATCH_BLOCK`.

    Raises:
        InvalidOption: this machine, this OpenVINO or these options do not go together.
    """

    def __init__(self, model: Model, options: ExecutorOptions, report: Report | None = None) -> None:
        check_release()
        core = ov.Core()
        precision = choose_precision(core, options)
        for shape in attention_shapes(model):
            self_test(core, precision.body, shape, precision.tolerance)
        self._embeddings, self._packed = Arena(), Arena()
        loaded = LoadedBytes(num_packed_bytes(model), report)
        with ThreadPoolExecutor(1) as pool:
            # The head is there once, not as the plugin's copy and as ours, before anything else as large is made.
            head = pool.submit(Head, core, model, options, precision.head, loaded)
            layers = pack_layers(model, options.dtype, self._packed, loaded, options.wide_weights)
            self._head = head.result()
        trim_heap()
        graph = build_body(model, options.dtype, options.max_model_len, layers, self._embeddings, loaded)
        body = core.compile_model(graph, "CPU", precision.body)
        ports = cache_ports(body)
        num_blocks = num_cache_blocks(
            sum(port.block_bytes for port in ports),
            BLOCK_SIZE,
            memory_bytes=options.kv_cache_memory_bytes,
            max_num_seqs=options.max_num_seqs,
            max_model_len=options.max_model_len,
        )
        self.cache_shape = CacheShape(num_blocks, BLOCK_SIZE)
        self.cache = allocate(ports, num_blocks + 1)
        self._body = body.create_infer_request()
        for name, tensor in self.cache.items():
            self._body.set_tensor(name, tensor)
        self._feed = Feed(self._body)

    # ------------------------------------------------------------ a step

    def start(self, inputs: StepInputs) -> None:
        """Begin to compute the body; returns at once."""
        feed = self._feed
        feed.set("token_ids", inputs.token_ids)
        feed.set("positions", inputs.positions)
        feed.set("past_lens", inputs.past_lens)
        feed.set("starts", inputs.starts)
        feed.set("block_ids", inputs.block_ids)
        feed.set("block_starts", inputs.block_starts)
        feed.set("max_context_len", np.array(inputs.max_context_len, np.int32))
        feed.set("output_rows", inputs.output_rows)
        self._body.start_async()

    def hidden_states(self) -> NDArray[np.float32]:
        """Wait for the body: `[outputs, hidden]`, valid until the next `start`."""
        self._body.wait()
        hidden: NDArray[np.float32] = self._body.get_output_tensor(0).data
        return hidden

    def logits(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits of at most `MAX_HEAD_ROWS` hidden states, `[rows, vocab]`, valid until the next call."""
        return self._head.logits(hidden)

    # ------------------------------------------------------------ before the first step

    def measure_rates(self) -> StepRates:
        """Step time as a line through two sizes, and a pass over some context; takes a few steps of time.

        The larger size shows what a token costs; where a few tokens fill `TARGET_STEP_S` already, they do.
        """
        few_s = self._best_time(1, 3)
        many = 64 if 8 * few_s < TARGET_STEP_S else 8
        many_s = self._best_time(many, 2)
        past_len = min(256, self.cache_shape.num_blocks * BLOCK_SIZE) - 1
        return fit_rates((1, few_s), (many, many_s), (many * past_len, self._time_step(many, past_len) - many_s))

    def warm_up(self, max_num_tokens: int) -> None:
        """Run every bucket of up to `max_num_tokens` tokens once, so that no request pays for a first time."""
        for size in buckets_up_to(max_num_tokens):
            self._time_step(size)
        self._packed.release()
        trim_heap()

    def _best_time(self, num_rows: int, repeats: int) -> float:
        """The best of some runs; the first of a size pays for being the first."""
        return min(self._time_step(num_rows) for _ in range(repeats))

    def _time_step(self, num_rows: int, past_len: int = 0) -> float:
        """Seconds that the body takes for rows of one token with the same past, read from blocks as they are."""
        inputs = uniform_inputs(num_rows, past_len, self.cache_shape)
        begun = time.perf_counter()
        self.start(inputs)
        self.hidden_states()
        return time.perf_counter() - begun
