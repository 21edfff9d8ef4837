"""Model families: which weights a model has, what they are called in each file format, and their shapes.

The rest of Chairlift knows only the canonical names (`embed`, `layers.3.q`, `norm`, `head`, ...). A family that joins
adds an entry to `FAMILIES`; what its layers compute is the executors' business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from chairlift.core.errors import InvalidModel
from chairlift.models.config import ModelConfig
from chairlift.models.files import shown
from chairlift.models.gguf import GGUF
from chairlift.models.gguf_config import config_from_gguf
from chairlift.models.hf_config import config_from_json

Dim = Literal["one", "hidden", "q", "kv", "mlp", "vocab"]


@dataclass(frozen=True, slots=True)
class Weight:
    """One weight of a family: `{i}` in its names stands for the layer, `shape` is (rows, cols)."""

    name: str
    hf: str
    gguf: str
    shape: tuple[Dim, Dim]
    when: Literal["always", "attention_bias", "mlp_bias", "own_head"] = "always"
    gguf_rotary: bool = False
    """In GGUF files rotary pair j of a head is its rows 2j and 2j + 1, not j and j + head_size / 2."""


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of model: the names by which files declare it, how its numbers are read, and its weights."""

    name: str
    hf_architectures: tuple[str, ...]
    gguf_architectures: tuple[str, ...]
    read_json: Callable[[Mapping[str, Any], str, str], ModelConfig]
    read_gguf: Callable[[GGUF, str], ModelConfig]
    weights: tuple[Weight, ...]
    hf_ignored: tuple[str, ...] = ()
    """Endings of tensor names that old checkpoints carry and nobody needs."""
    gguf_ignored: tuple[str, ...] = ()

    def weights_of(self, config: ModelConfig) -> Iterator[tuple[str, int, Weight]]:
        """Every weight of a model of this shape, once: (canonical name, layer or 0, description)."""
        for weight in self.weights:
            if _is_present(weight, config):
                layers = range(config.num_layers) if "{i}" in weight.name else range(1)
                yield from ((weight.name.format(i=i), i, weight) for i in layers)


def _is_present(weight: Weight, config: ModelConfig) -> bool:
    match weight.when:
        case "attention_bias":
            return config.attention_bias
        case "mlp_bias":
            return config.mlp_bias
        case "own_head":
            return not config.tie_embeddings
        case "always":
            return True


def shape_of(weight: Weight, config: ModelConfig) -> tuple[int, int]:
    """(rows, cols) of a weight in a model of this shape."""
    sizes: dict[Dim, int] = {
        "one": 1,
        "hidden": config.hidden_size,
        "q": config.q_size,
        "kv": config.kv_size,
        "mlp": config.intermediate_size,
        "vocab": config.vocab_size,
    }
    return sizes[weight.shape[0]], sizes[weight.shape[1]]


_LAYER: tuple[tuple[str, str, str, tuple[Dim, Dim]], ...] = (
    ("q", "self_attn.q_proj", "attn_q", ("q", "hidden")),
    ("k", "self_attn.k_proj", "attn_k", ("kv", "hidden")),
    ("v", "self_attn.v_proj", "attn_v", ("kv", "hidden")),
    ("o", "self_attn.o_proj", "attn_output", ("hidden", "q")),
    ("gate", "mlp.gate_proj", "ffn_gate", ("mlp", "hidden")),
    ("up", "mlp.up_proj", "ffn_up", ("mlp", "hidden")),
    ("down", "mlp.down_proj", "ffn_down", ("hidden", "mlp")),
)


def _llama_weights() -> tuple[Weight, ...]:
    layer = "layers.{i}."
    hf = "model.layers.{i}."
    gguf = "blk.{i}."
    weights = [
        Weight("embed", "model.embed_tokens.weight", "token_embd.weight", ("vocab", "hidden")),
        Weight(layer + "attn_norm", hf + "input_layernorm.weight", gguf + "attn_norm.weight", ("one", "hidden")),
        Weight(layer + "mlp_norm", hf + "post_attention_layernorm.weight", gguf + "ffn_norm.weight", ("one", "hidden")),
        Weight("norm", "model.norm.weight", "output_norm.weight", ("one", "hidden")),
        Weight("head", "lm_head.weight", "output.weight", ("vocab", "hidden"), "own_head"),
    ]
    for name, hf_name, gguf_name, shape in _LAYER:
        rotary = name in ("q", "k")
        when: Literal["attention_bias", "mlp_bias"] = "attention_bias" if name in ("q", "k", "v", "o") else "mlp_bias"
        weights.append(
            Weight(layer + name, hf + hf_name + ".weight", gguf + gguf_name + ".weight", shape, gguf_rotary=rotary)
        )
        weights.append(
            Weight(
                layer + name + "_bias",
                hf + hf_name + ".bias",
                gguf + gguf_name + ".bias",
                ("one", shape[0]),
                when,
                gguf_rotary=rotary,
            )
        )
    return tuple(weights)


LLAMA = Family(
    name="llama",
    hf_architectures=("LlamaForCausalLM", "MistralForCausalLM"),
    gguf_architectures=("llama",),
    read_json=config_from_json,
    read_gguf=config_from_gguf,
    weights=_llama_weights(),
    hf_ignored=(".rotary_emb.inv_freq", ".masked_bias"),
    gguf_ignored=("rope_freqs.weight",),
)

FAMILIES = (LLAMA,)


def family_of_json(values: Mapping[str, Any], where: str) -> Family:
    """The family that a `config.json` declares.

    Raises:
        InvalidModel: it declares none, or one that is not supported.
    """
    declared = values.get("architectures")
    if not isinstance(declared, list) or not declared or not isinstance(declared[0], str):
        raise InvalidModel(f"{where}: architectures must be a list of names")
    for family in FAMILIES:
        if declared[0] in family.hf_architectures:
            return family
    supported = ", ".join(name for family in FAMILIES for name in family.hf_architectures)
    raise InvalidModel(f"{where}: architecture {shown(declared[0])} is not supported ({supported} are)")


def family_of_gguf(gguf: GGUF) -> Family:
    """The family that a GGUF file declares.

    Raises:
        InvalidModel: it declares none, or one that is not supported.
    """
    declared = gguf.text("general.architecture")
    for family in FAMILIES:
        if declared in family.gguf_architectures:
            return family
    supported = ", ".join(name for family in FAMILIES for name in family.gguf_architectures)
    raise gguf.error(f"architecture {shown(declared)} is not supported ({supported} are)")
