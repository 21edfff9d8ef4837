"""What a decoder-only model is made of, in numbers: see `hf_config` and `gguf_config` for where they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from chairlift.core.errors import InvalidModel
from chairlift.models.rope import Rope


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The numbers that shape a model. `architecture` is the name of its family in `families.py`.

    `max_model_len` is the context it was made for, in tokens. `sliding_window` counts the current token.
    `sampling_defaults` are what its makers recommend, by the names of `SamplingParams`.
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
    rms_norm_eps: float
    rope: Rope
    tie_embeddings: bool = False
    sliding_window: int | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    sampling_defaults: Mapping[str, float | int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise InvalidModel(f"{self.num_heads} heads cannot share {self.num_kv_heads} key/value heads evenly")
        if self.head_size % 2:
            raise InvalidModel(f"head size {self.head_size} is odd: it cannot be rotated in pairs")
        for token in (self.bos_token_id, *self.eos_token_ids):
            if token is not None and not 0 <= token < self.vocab_size:
                raise InvalidModel(f"special token id {token} is outside the vocabulary of {self.vocab_size}")

    @property
    def q_size(self) -> int:
        """Numbers in the queries of one token, all heads."""
        return self.num_heads * self.head_size

    @property
    def kv_size(self) -> int:
        """Numbers in the keys (or the values) of one token, all heads."""
        return self.num_kv_heads * self.head_size
