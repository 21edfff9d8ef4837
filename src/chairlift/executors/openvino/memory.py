"""How much memory a model takes, before anything of it is loaded, and whether this machine has it."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import openvino as ov

from chairlift.core.errors import InvalidOption
from chairlift.executors.openvino.attention import BLOCK_SIZE
from chairlift.executors.openvino.cache import FREE_MEMORY_SHARE, available_bytes
from chairlift.executors.openvino.graph import GROUPS, is_expert, weight_kinds
from chairlift.executors.openvino.options import Dtype, ExecutorOptions
from chairlift.executors.openvino.pieces import BUFFER_FACTOR, max_piece_bytes
from chairlift.executors.openvino.precision import choose_precision
from chairlift.executors.openvino.weights import dtype_of_rows, gives_back_early, suits_expert_int4
from chairlift.models import Model, ModelConfig, Tensor, suits_int4
from chairlift.models.encoder import Encoder
from chairlift.models.files import shown_bytes
from chairlift.models.quantize import grid_shape, int4_bytes, int8_bytes

CacheKind = Literal["f32", "bf16", "u8"]
"""Precision of cached keys and values, as the plugin calls it."""

PROGRAM_BYTES = 62 << 20
"""What OpenVINO takes when a small model runs, beside what it takes as soon as it is imported."""
_FEW_LAYERS = 30
"""Layers of a small model; `_LAYER_BYTES` is what each one more takes beside its weights, most in four bits."""
_LAYER_BYTES = 1100 << 10
_PACKING_BYTES = 50 << 20
"""What there is of that, and of blocks being rounded, while weights are packed."""
_WARM_UP_BYTES = 16 << 20
"""What is left over from running every size of step once, until it is given back."""
_FLOAT32_BYTES = 80 << 20
"""What the plugin's kernels take more in float32, measured with two models; and a quarter of the layers, the weights of
`down`, is there in a second form, for steps of one token."""
_OFFSET_PRODUCT_BYTES = 200 << 10
"""What a product takes whose four-bit numbers have offsets: it is two, and sums, prepared for all sizes of step."""
STEP_TOKENS = 512
"""Tokens of a step whose intermediate results are counted."""
_ENCODER_BYTES = 120 << 20
"""What a running encoder takes beside its weights."""
_TEXT_BYTES_PER_TOKEN = 880
"""What the tokenizer takes (280 to 310 bytes a token of the vocabulary) and the tables for answers in a form (the
spellings 60 to 100, what is made of them 360 to 380), and between them 140 that are free and cannot be given back: they
are made while weights are packed. Measured with vocabularies of 49,152 (840 in all) and 262,144 tokens (930)."""
_LOGIT_ROWS = 96
"""Rows of logits: the 64 of a piece, and what the plugin needs for them."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes that a model takes in one precision.

    `weight_bytes` are without the embedding, which stays in the file. `loading_bytes` are those of the moment when
    there is most, without the cache; `running_bytes` remain of them; `text_bytes` of both are the tokenizer's and of
    the tables for answers in a form. A token in the cache takes `token_bytes`. A step
    over one token reads `read_bytes` of weights in `dtype`; `num_offset_products` of its products are of four bits with
    offsets. `has_cap`: attention scores have a soft cap.
    """

    dtype: Dtype
    weight_bytes: int
    loading_bytes: int
    running_bytes: int
    token_bytes: float
    read_bytes: int
    num_offset_products: int
    text_bytes: int
    has_cap: bool = False

    def with_cache(self, cache_bytes: float) -> int:
        """The most there ever is."""
        return max(self.loading_bytes, self.running_bytes + int(cache_bytes))


def memory_need(
    model: Model, dtype: Dtype, cache: CacheKind, wide: Container[str] = (), head_group: int = GROUPS["int8"]
) -> MemoryNeed:
    """What a model takes with its weights in `dtype`, but those in `wide` in bfloat16.

    In eight bits, `head_group` numbers of the head share a scale.

    The head is there twice while the layers are packed. Of the layers only two are (see `Program.lay_out`), unless it
    has to be known first that nobody needs what they were made from. Experts are in any case: the plugin lays them out
    while it compiles.
    """
    kinds = weight_kinds(model, dtype, wide, head_group)
    sizes = {name: _packed_bytes(model.weights.tensor(name), *kind) for name, kind in kinds.items() if name != "embed"}
    head = sizes.pop("head")
    layers = sum(sizes.values())
    experts = sum(num_bytes for name, num_bytes in sizes.items() if is_expert(name))
    weight_bytes = head + layers
    num_offset_products = sum(_has_offsets(model.weights.tensor(name), dtype) for name, (dtype, _) in kinds.items())
    text_bytes = _TEXT_BYTES_PER_TOKEN * model.config.vocab_size
    running_bytes = weight_bytes + text_bytes + _overhead_bytes(model.config)
    running_bytes += num_offset_products * _OFFSET_PRODUCT_BYTES
    if dtype == "float32":
        running_bytes += layers // 4 + _FLOAT32_BYTES
    twice = max(experts, 2 * (layers - experts) // model.config.num_layers) if gives_back_early(dtype) else layers
    at_end = running_bytes + max(twice, _WARM_UP_BYTES)
    return MemoryNeed(
        dtype,
        weight_bytes,
        max(at_end, weight_bytes + text_bytes + head + _PACKING_BYTES),
        running_bytes,
        token_bytes(model.config, cache),
        head + layers - experts + experts * model.config.experts_per_token // max(model.config.num_experts, 1),
        num_offset_products,
        text_bytes,
        model.config.attention_softcap is not None,
    )


def encoder_weight_bytes(encoder: Encoder, dtype: Dtype) -> int:
    """Memory of the weights of an encoder."""
    tensors = (encoder.weights.tensor(name) for name in encoder.weights.names)
    kinds = ((tensor, dtype_of_rows(tensor.cols, dtype)) for tensor in tensors)
    return sum(_packed_bytes(tensor, own, GROUPS[own]) for tensor, own in kinds)


def _packed_bytes(tensor: Tensor, dtype: Dtype, group: int) -> int:
    num_numbers = tensor.rows * tensor.cols
    if tensor.rows == 1 or dtype == "float32":
        return 4 * num_numbers
    if dtype == "bfloat16":
        return 2 * num_numbers
    suits = suits_expert_int4(tensor) if is_expert(tensor.name) else suits_int4(tensor)
    return int4_bytes(tensor, group) if dtype == "int4" and suits else int8_bytes(tensor, group)


def _overhead_bytes(config: ModelConfig) -> int:
    """What is not weights and not cache: the program, the results between layers of a step, logits; with a soft cap
    what attention keeps at most."""
    chosen = max(config.experts_per_token, 1)
    inner = max(
        chosen * config.expert_size + config.shared_expert_size
        if config.has_experts(layer)
        else config.intermediate_size
        for layer in range(config.num_layers)
    )
    between = (5 + chosen) * config.hidden_size + 3 * inner
    between += config.q_size + 2 * config.kv_size
    capped = 0 if config.attention_softcap is None else BUFFER_FACTOR * max_piece_bytes(config)
    program = PROGRAM_BYTES + max(config.num_layers - _FEW_LAYERS, 0) * _LAYER_BYTES
    return program + capped + 4 * (STEP_TOKENS * between + _LOGIT_ROWS * config.vocab_size)


def _has_offsets(tensor: Tensor, dtype: Dtype) -> bool:
    """Whether a weight is packed in four bits with offsets, which make its product two products and sums."""
    if dtype != "int4" or is_expert(tensor.name) or not suits_int4(tensor):
        return False
    shape = grid_shape(tensor)
    return shape is not None and shape.has_offsets


def token_bytes(config: ModelConfig, cache: CacheKind) -> float:
    """Memory of the keys and values of one token, in all layers.

    Eight bits have a scale and a zero point of 32 bits each: for every value vector, and for every channel of the keys
    of a block.
    """
    if cache == "u8":
        one = 2 * config.head_size + 8 + 8 * config.head_size / BLOCK_SIZE
        return config.num_layers * config.num_kv_heads * one
    return config.num_layers * 2 * config.kv_size * (4 if cache == "f32" else 2)


def cache_kind(core: ov.Core, options: ExecutorOptions, config: ModelConfig) -> CacheKind:
    """What the options mean for a model's cache on this machine.

    Raises:
        InvalidOption: a combination that the plugin does not have.
    """
    has_cap = config.attention_softcap is not None
    chosen = choose_precision(core, options, has_cap=has_cap).body["KV_CACHE_PRECISION"]
    return next(kind for kind in get_args(CacheKind) if kind == chosen)


# ---------------------------------------------------------------- whether there is enough


def check_memory(model: Model, options: ExecutorOptions, cache: CacheKind, available: int | None = None) -> None:
    """Refuse what would be killed for its memory while it loads, with the figures, and with what would fit.

    `available` bytes are free; None: as the system says now.

    Raises:
        InvalidOption: the weights do not fit, or not with the cache or the context that was asked for.
    """
    available = available_bytes() if available is None else available
    need = memory_need(model, options.dtype, cache, options.wide_weights, options.head_group)
    least = 2 * BLOCK_SIZE * need.token_bytes
    wanted = options.kv_cache_memory_bytes or least
    if not available or need.with_cache(wanted) <= available:  # not every system says what is free
        _check_context(model, options, need, available)
        return
    figures = (
        f"{model.name} does not fit: with {options.dtype} weights it takes {shown_bytes(need.loading_bytes)} while it "
        f"loads and {shown_bytes(need.running_bytes)} then, {shown_bytes(wanted)} of cache aside, "
        f"and {shown_bytes(available)} are free"
    )
    if need.with_cache(least) <= available:
        raise InvalidOption(f"{figures}: a cache of {shown_bytes(available - need.running_bytes)} would fit")
    raise InvalidOption(f"{figures}: {'; '.join(_what_fits(model, options.dtype, available))}")


def check_encoder_memory(encoder: Encoder, dtype: Dtype, available: int | None = None) -> None:
    """The same for an encoder, which keeps no cache.

    Raises:
        InvalidOption: its weights do not fit.
    """
    available = available_bytes() if available is None else available
    most = _ENCODER_BYTES + 2 * encoder_weight_bytes(encoder, dtype)
    if available and most > available:
        raise InvalidOption(
            f"{encoder.name} does not fit: with {dtype} weights it takes {shown_bytes(most)} while it loads, and "
            f"{shown_bytes(available)} are free"
        )


def _check_context(model: Model, options: ExecutorOptions, need: MemoryNeed, available: int) -> None:
    """Refuse a context that the cache could not hold, where it was asked for."""
    budget = options.kv_cache_memory_bytes or FREE_MEMORY_SHARE * (available - need.running_bytes)
    num_tokens = int(budget / (BLOCK_SIZE * need.token_bytes) - 1) * BLOCK_SIZE
    if available and options.whole_context and num_tokens < options.max_model_len:
        needed = (options.max_model_len + 2 * BLOCK_SIZE) * need.token_bytes
        raise InvalidOption(
            f"max_model_len is {options.max_model_len}, which takes {shown_bytes(needed)} of cache with {model.name}, "
            f"but it would have {shown_bytes(budget)}: {num_tokens} tokens would fit, or give it more memory "
            "(kv_cache_memory_bytes)"
        )


def _what_fits(model: Model, asked: Dtype, available: int) -> Iterator[str]:
    """Precisions that would fit, or what the smallest one takes."""
    least: tuple[int, Dtype] | None = None
    fits = False
    for dtype in get_args(Dtype):
        cache: CacheKind = "f32" if dtype == "float32" else "bf16"
        need = memory_need(model, dtype, cache)
        most = need.with_cache(2 * BLOCK_SIZE * need.token_bytes)
        if most <= available and dtype != asked:
            fits = True
            yield f"{dtype} would ({shown_bytes(most)})"
        least = min(least or (most, dtype), (most, dtype))
    if not fits and least is not None:
        yield f"no precision does, {least[1]} takes {shown_bytes(least[0])}"
