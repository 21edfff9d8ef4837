"""How fast one answer comes, as far as the memory lets it: what to expect before anything is loaded."""

from __future__ import annotations

from chairlift.executors.openvino.memory import MemoryNeed

READ_SHARE = 0.85
"""Of the bandwidth, what products with a vector reach: measured with int8 on two cores."""
LAYER_S = 75e-6
"""What a layer costs beside its weights: small operations, and waiting of threads for each other."""
STEP_S = 3e-4


def expected_tokens_per_s(need: MemoryNeed, num_layers: int, num_context_tokens: int, bandwidth: float) -> float:
    """Tokens a second of a single answer with so many tokens before it, where `bandwidth` bytes a second are read.

    Every token reads all weights but the embedding, and the keys and values of all tokens before it. Four bits are
    taken apart by arithmetic: on few cores they come nearer to eight than this says.
    """
    num_bytes = need.read_bytes + num_context_tokens * need.token_bytes
    return 1 / (num_bytes / (READ_SHARE * bandwidth) + num_layers * LAYER_S + STEP_S)
