"""A model compiled for this machine: its two graphs, its cache, and the sizes that were run once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from chairlift.core.types import CacheShape
from chairlift.executors.loading import LoadedBytes, Report
from chairlift.executors.openvino.attention import BLOCK_SIZE, check_release
from chairlift.executors.openvino.buckets import buckets_up_to, round_up
from chairlift.executors.openvino.cache import allocate, cache_ports, num_cache_blocks
from chairlift.executors.openvino.capped import attention_feed, check_cache
from chairlift.executors.openvino.embeddings import Embeddings
from chairlift.executors.openvino.feed import Feed
from chairlift.executors.openvino.graph import (
    PackedLayers,
    attention_shapes,
    build_body,
    build_head,
    num_packed_bytes,
    pack_layers,
)
from chairlift.executors.openvino.inputs import SCRATCH_BLOCK, StepInputs, uniform_inputs
from chairlift.executors.openvino.options import ExecutorOptions
from chairlift.executors.openvino.pieces import Piece, max_piece_bytes, pieces_of, uncut_inputs
from chairlift.executors.openvino.precision import Properties, choose_precision
from chairlift.executors.openvino.rates import TARGET_STEP_S, StepRates, fit_rates
from chairlift.executors.openvino.self_test import self_test
from chairlift.executors.openvino.weights import Arena, gives_back_early, trim_heap
from chairlift.models import Model

_UNWRITTEN = 1
"""What bytes of a cache are set to, to see when keys are written: no key is such a number in all places."""
MAX_HEAD_ROWS = 64
"""Rows of logits computed at a time. Larger pieces are no faster and take `vocab_size` floats of memory a row."""


class Head:
    """Hidden states to logits, a piece at a time. Every size of piece was run once when it is constructed."""

    def __init__(
        self, core: ov.Core, model: Model, options: ExecutorOptions, properties: Properties, loaded: LoadedBytes
    ) -> None:
        self._hidden_size = model.config.hidden_size
        early = gives_back_early(options.dtype)
        packed = self._load(core, model, options, properties, early)
        if early and packed.was_read():
            packed = self._load(core, model, options, properties, early=False)
        packed.release()
        loaded.add(model.weights.tensor("head").num_bytes)

    def _load(
        self, core: ov.Core, model: Model, options: ExecutorOptions, properties: Properties, early: bool
    ) -> Arena:
        """Pack, compile and run every size; `early`: what was packed is given back after the first."""
        packed = Arena()
        graph = build_head(model, options.dtype, options.head_group, packed, options.wide_weights)
        self._request = core.compile_model(graph, "CPU", properties).create_infer_request()
        self._feed = Feed(self._request)
        for size in buckets_up_to(MAX_HEAD_ROWS):
            self.logits(np.zeros((size, self._hidden_size), np.float32))
            if early and size == 1:
                packed.release()
        return packed

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
        self._gave_back_early = False
        self._core = ov.Core()
        self._model = model
        self._options = options
        self._precision = choose_precision(self._core, options)
        self._shapes = attention_shapes(model)
        check_cache(self._shapes, options.kv_cache_dtype)
        for shape in self._shapes:
            self_test(self._core, self._precision.body, shape, self._precision.tolerance)
        loaded = LoadedBytes(num_packed_bytes(model), report)
        with ThreadPoolExecutor(1) as pool:
            # The head is there once, not as the plugin's copy and as ours, before anything else as large is made.
            head = pool.submit(Head, self._core, model, options, self._precision.head, loaded)
            layers = self._pack(loaded)
            self._head = head.result()
        trim_heap()
        self._embeddings = Embeddings(model, options)
        body = self._compile(layers)
        ports = cache_ports(body)
        num_blocks = num_cache_blocks(
            sum(port.block_bytes for port in ports),
            BLOCK_SIZE,
            memory_bytes=options.kv_cache_memory_bytes,
            max_num_seqs=options.max_num_seqs,
            max_model_len=options.max_model_len,
            returning_bytes=self._packed_experts.num_bytes,
        )
        self.cache_shape = CacheShape(num_blocks, BLOCK_SIZE)
        self.cache = allocate(ports, num_blocks + 1)
        self._layer_token_bytes = sum(port.block_bytes for port in ports) / BLOCK_SIZE / model.config.num_layers
        self._max_piece_bytes = max_piece_bytes(model.config)
        self._pieces: list[Piece] = []
        self._num_outputs = 0
        self._request(body)

    def _pack(self, loaded: LoadedBytes) -> PackedLayers:
        """The weights of all layers, in memory of their own for each of them, and for experts."""
        self._packed = [Arena() for _ in range(self._model.config.num_layers)]
        self._packed_experts = Arena()
        return pack_layers(
            self._model,
            self._options.dtype,
            self._packed,
            self._packed_experts,
            loaded,
            self._options.wide_weights,
        )

    def _compile(self, layers: PackedLayers) -> ov.CompiledModel:
        graph = build_body(self._model, self._options.max_model_len, layers)
        return self._core.compile_model(graph, "CPU", self._precision.body)

    def _request(self, body: ov.CompiledModel) -> None:
        self._body = body.create_infer_request()
        for name, tensor in self.cache.items():
            self._body.set_tensor(name, tensor)
        self._feed = Feed(self._body)

    # ------------------------------------------------------------ a step

    def start(self, inputs: StepInputs) -> None:
        """Begin to compute the body; returns at once."""
        self._pieces = pieces_of(inputs, self._shapes, self._layer_token_bytes, self._max_piece_bytes)
        self._num_outputs = len(inputs.output_rows)
        self._begin(self._pieces[0].inputs)

    def _begin(self, inputs: StepInputs) -> None:
        feed = self._feed
        feed.set("embeddings", self._embeddings.rows(inputs.token_ids))
        feed.set("positions", inputs.positions)
        feed.set("output_rows", inputs.output_rows)
        for name, value in attention_feed(inputs, self._shapes).items():
            feed.set(name, value)
        self._body.start_async()

    def hidden_states(self) -> NDArray[np.float32]:
        """Wait for the body: `[outputs, hidden]`, valid until the next `start`."""
        hidden = self._wait()
        if len(self._pieces) == 1:
            return hidden
        whole = np.empty((self._num_outputs, hidden.shape[1]), np.float32)
        for i, piece in enumerate(self._pieces):
            if i:
                self._begin(piece.inputs)
                hidden = self._wait()
            whole[piece.outputs] = hidden[: len(piece.outputs)]
        return whole

    def _wait(self) -> NDArray[np.float32]:
        self._body.wait()
        hidden: NDArray[np.float32] = self._body.get_output_tensor(0).data
        return hidden

    def logits(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits of at most `MAX_HEAD_ROWS` hidden states, `[rows, vocab]`, valid until the next call."""
        return self._head.logits(hidden)

    # ------------------------------------------------------------ before the first step

    def lay_out(self) -> None:
        """Compute one token, and give back what was packed of each layer as soon as the plugin has it in its own form.

        It lays out the weights of a product when it comes to it. A layer that has written its keys shows that all
        before it are done, so weights are never there twice, but for those of a layer or two. Those of experts it has
        in its own form since it compiled.
        """
        if not gives_back_early(self._options.dtype):
            return
        self._gave_back_early = True
        self._packed_experts.release()
        cells = [self.cache[f"key_cache.{layer}"].data[SCRATCH_BLOCK] for layer in range(self._model.config.num_layers)]
        blocks = [block.view(np.uint8) for block in cells]
        for block in blocks:
            block.fill(_UNWRITTEN)
        self.start(uniform_inputs(1, 0, self.cache_shape))
        for packed, block in zip(self._packed[:-1], blocks[1:], strict=True):
            while (block == _UNWRITTEN).all() and not self._body.wait_for(1):
                pass
            packed.release()
        self.hidden_states()
        self._packed[-1].release()
        for block in blocks:
            block.fill(0)

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
        self._run_sizes(max_num_tokens)
        if self._gave_back_early and any(packed.was_read() for packed in (*self._packed, self._packed_experts)):
            # Some size wanted weights in another form, and found zeros.
            self._request(self._compile(self._pack(LoadedBytes(0, None))))
            self._run_sizes(max_num_tokens)
        for packed in (*self._packed, self._packed_experts):
            packed.release()
        trim_heap()

    def _run_sizes(self, max_num_tokens: int) -> None:
        smaller = 0
        for size in buckets_up_to(max_num_tokens):
            self._time_step(size)
            if len(self._pieces) > 1:
                # Rows of one token are cut first: others of this size may still be computed at once.
                inputs = uncut_inputs(smaller + 1, self._shapes, self._layer_token_bytes, self._max_piece_bytes)
                if inputs is not None:
                    self._begin(inputs)
                    self._wait()
            smaller = size

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
