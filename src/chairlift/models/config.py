"""What a decoder-only model is made of, in numbers: see `hf_config` and `gguf_config` for where they are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from chairlift.core.errors import InvalidModel
from chairlift.models.rope import Rope

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
"""`gelu` is the exact one, `relu2` the square of `relu`."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The numbers that shape a model. `architecture` is the name of its family in `families.py`.

    `max_model_len` is the context it was made for, in tokens.
    `sampling_defaults` are what its makers recommend, by the names of `SamplingParams`.

    What only some families have is off by default:

    - `sliding_window` counts the current token; `sliding_layers` says which layers have it (empty: all), and
      `local_rope` is the rotation of those, if it is another. Layers in `unrotated_layers` have none.
    - `attention_bias` is that of q, k and v, `output_bias` that of o. Scores are scaled by `attention_scale`, or by
      `head_size ** -0.5`; with `scale_by_depth` the n-th layer divides that by n. A score s then becomes
      `attention_softcap * tanh(s / attention_softcap)`, and a logit the same with `logit_softcap`.
    - `qk_norm` normalises queries and keys before they are rotated: all heads with one weight, every head with a weight
      of its own, or the whole width at once.
    - `norm` is root mean square or layer normalisation (that of queries and keys of each head too), `norm_bias` its
      bias, and `norm_offset` is added to all its weights. `pre_norms` are before attention and MLP,
      `post_norms` after them. With `parallel_residual` both read the one before attention.
    - `learned_positions` says that a learned vector for each of the `max_model_len` positions is added to embeddings.
      An MLP that is not `gated` has one matrix before its activation.
    - `attention_sinks` are a number for each head of a layer that counts as one more score, of a token without a value.
    - with `num_experts` the MLP is so many of `expert_size`, of which each token uses the `experts_per_token` that a
      router scores highest, weighted by the softmax of all scores, which `normalised_experts` divide by their sum.
      `dense_layers` have one MLP of `intermediate_size` instead. With `expert_bias` experts and router have biases.
      An expert of `shared_expert_size` that all tokens use is added, times the sigmoid of a router of its own.
    - with `swiglu_limit` experts cut the gate above it, and the other half beyond it on both sides; the gate is
      `x * sigmoid(swiglu_alpha * x)`, and one is added to the other half.
    - embeddings are multiplied by `embedding_scale`, what attention and MLP add by `residual_scale`, logits by
      `logit_scale`.
    """

    architecture: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    vocab_size: int
    max_model_len: int
    norm_eps: float
    rope: Rope
    tie_embeddings: bool = False
    sliding_window: int | None = None
    sliding_layers: tuple[bool, ...] = ()
    local_rope: Rope | None = None
    unrotated_layers: tuple[bool, ...] = ()
    attention_bias: bool = False
    output_bias: bool = False
    attention_scale: float | None = None
    scale_by_depth: bool = False
    attention_softcap: float | None = None
    qk_norm: Literal["none", "head", "each_head", "all_heads"] = "none"
    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = False
    norm_offset: float = 0.0
    pre_norms: bool = True
    post_norms: bool = False
    parallel_residual: bool = False
    activation: Activation = "silu"
    mlp_bias: bool = False
    gated: bool = True
    learned_positions: bool = False
    num_experts: int = 0
    experts_per_token: int = 0
    normalised_experts: bool = True
    expert_size: int = 0
    dense_layers: tuple[bool, ...] = ()
    expert_bias: bool = False
    shared_expert_size: int = 0
    swiglu_limit: float | None = None
    swiglu_alpha: float = 1.0
    attention_sinks: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    sampling_defaults: Mapping[str, float | int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise InvalidModel(f"{self.num_heads} heads cannot share {self.num_kv_heads} key/value heads evenly")
        if self.head_size % 2:
            raise InvalidModel(f"head size {self.head_size} is odd: it cannot be rotated in pairs")
        if self.num_experts and not 1 <= self.experts_per_token <= self.num_experts:
            raise InvalidModel(f"{self.experts_per_token} of {self.num_experts} experts cannot be chosen")
        for token in (self.bos_token_id, *self.eos_token_ids):
            if token is not None and not 0 <= token < self.vocab_size:
                raise InvalidModel(f"special token id {token} is outside the vocabulary of {self.vocab_size}")
        for layers in (self.sliding_layers, self.unrotated_layers, self.dense_layers):
            if layers and len(layers) != self.num_layers:
                raise InvalidModel(f"{len(layers)} kinds of layers for {self.num_layers} layers")

    @property
    def q_size(self) -> int:
        """Numbers in the queries of one token, all heads."""
        return self.num_heads * self.head_size

    @property
    def kv_size(self) -> int:
        """Numbers in the keys (or the values) of one token, all heads."""
        return self.num_kv_heads * self.head_size

    def score_scale(self, layer: int) -> float:
        """What the products of queries and keys are multiplied by."""
        scale = self.head_size**-0.5 if self.attention_scale is None else self.attention_scale
        return scale / (layer + 1) if self.scale_by_depth else scale

    def window_of(self, layer: int) -> int | None:
        """Tokens that a layer attends to, the current one among them; None for all."""
        return self.sliding_window if not self.sliding_layers or self.sliding_layers[layer] else None

    def has_experts(self, layer: int) -> bool:
        """Whether a layer has a mixture of experts instead of one MLP."""
        return self.num_experts > 0 and not (self.dense_layers and self.dense_layers[layer])

    def rope_of(self, layer: int) -> Rope | None:
        """How a layer turns queries and keys; None if it does not."""
        if self.unrotated_layers and self.unrotated_layers[layer]:
            return None
        return self.local_rope if self.local_rope and self.window_of(layer) else self.rope


def tokens_within(vocab_size: int, token_ids: Iterable[int]) -> tuple[int, ...]:
    """Those that there are, once each: configs of small models often keep the special tokens of large ones, which no
    text of theirs can have."""
    return tuple(dict.fromkeys(token for token in token_ids if 0 <= token < vocab_size))


def all_but_every(period: int, num_layers: int) -> tuple[bool, ...]:
    """A flag for each layer, off for every `period`-th: how families mix two kinds of layers."""
    return tuple((i + 1) % period != 0 for i in range(num_layers))
