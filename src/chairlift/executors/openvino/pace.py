"""How fast one answer comes, as far as the memory lets it: what to expect before anything is loaded."""

from __future__ import annotations

from chairlift.executors.openvino.memory import MemoryNeed
from chairlift.executors.openvino.options import Dtype

READ_SHARES: dict[Dtype, float] = {"float32": 0.86, "bfloat16": 0.6, "int8": 0.7, "int4": 0.68}
"""Of the bandwidth, what products with a vector reach: measured with two models on two cores."""
CACHE_SHARE = 0.4
"""What attention reaches, whose keys and values lie in small pieces."""
LAYER_S = 75e-6
"""What a layer costs beside its weights: small operations, and waiting of threads for each other."""
OFFSET_PRODUCT_S = 22e-6
"""What a product of four-bit numbers with offsets costs more: sums of its inputs, and a second product."""
STEP_S = 3e-4
CAPPED_LAYER_S = 5e-4
"""What a layer costs more whose attention is made of ordinary operations."""


def expected_tokens_per_s(need: MemoryNeed, num_layers: int, num_context_tokens: int, bandwidth: float) -> float:
    """Tokens a second of a single answer with so many tokens before it, where `bandwidth` bytes a second are read.

    Every token reads all weights but the embedding, and the keys and values of all tokens before it.
    """
    layer_s = LAYER_S + CAPPED_LAYER_S * need.has_cap
    reading_s = need.read_bytes / READ_SHARES[need.dtype] + num_context_tokens * need.token_bytes / CACHE_SHARE
    operations_s = num_layers * layer_s + need.num_offset_products * OFFSET_PRODUCT_S + STEP_S
    return 1 / (reading_s / bandwidth + operations_s)
