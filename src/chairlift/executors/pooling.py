"""What is made of a single pass's output: an embedding, or scores of labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chairlift.core.types import PoolingParams
from chairlift.models.encoder_config import EncoderConfig, LabelActivation

Floats = NDArray[np.float32]


def pooled_vector(output: Floats, asked: PoolingParams | None, config: EncoderConfig) -> Floats:
    """The numbers that a request gets for the output of its row."""
    asked = asked or PoolingParams()
    if config.head != "none":
        return activated(output, config.label_activation) if asked.activate else output
    vector = output if asked.dimensions is None else output[: asked.dimensions]
    normalize = config.normalize if asked.normalize is None else asked.normalize
    return normalized(vector) if normalize else vector


def normalized(vector: Floats) -> Floats:
    """The same direction with length 1; a vector of nothing but zeros stays what it is."""
    length = np.float32(np.sqrt(np.sum(np.square(vector, dtype=np.float32))))
    scaled: Floats = vector / max(length, np.float32(1e-12))
    return scaled


def activated(logits: Floats, activation: LabelActivation) -> Floats:
    """Scores of labels."""
    match activation:
        case "sigmoid":
            scores: Floats = np.float32(0.5) * (np.float32(1) + np.tanh(np.float32(0.5) * logits))
            return scores
        case "softmax":
            weights = np.exp(logits - logits.max())
            shares: Floats = weights / weights.sum()
            return shares
        case "identity":
            return logits
