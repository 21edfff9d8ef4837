"""Which weights a decoder has, what they are called in each file format, and their shapes.

The rest of Chairlift knows only the canonical names (`embed`, `layers.3.q`, `norm`, `head`, ...). One table serves all
families: a weight is there when the config says so, and a family only says what its files name or store otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from chairlift.models.config import ModelConfig

Dim = Literal["one", "hidden", "q", "kv", "head", "heads", "mlp", "expert", "shared", "vocab", "positions", "experts"]
Condition = Callable[[ModelConfig], bool]
InLayer = Callable[[ModelConfig, int], bool]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file keeps a weight: the name of a tensor, and which part of it if it holds several.

    `parts` are the numbers of rows (of a vector: of numbers) of the weights that lie in the tensor one after the other;
    this is number `part` of them. `{i}` in the name stands for the layer, `{n}` for the copy; copies whose name
    has no `{n}` lie in one tensor, one after the other. `transposed`: the tensor's columns are the weight's rows.
    With `interleaved` the parts lie row by row (number by number) in turns. A `bare` name has no `.weight`, and that of
    its bias ends with `_bias`.
    """

    name: str
    parts: tuple[Dim, ...] = ()
    part: int = 0
    transposed: bool = False
    interleaved: bool = False
    bare: bool = False


@dataclass(frozen=True, slots=True)
class Weight:
    """One weight of a family: `{i}` in its name stands for the layer, `shape` is (rows, cols)."""

    name: str
    hf: Place
    gguf: Place
    shape: tuple[Dim, Dim]
    when: Condition
    copies: Literal["one", "heads", "kv_heads", "experts"] = "one"
    """A copy for each of these, `{n}` in the name."""
    in_layer: InLayer = lambda config, layer: True
    """Which layers have it."""
    gguf_each: Place | None = None
    """Where older files keep each copy in a tensor of its own."""
    gguf_rotary: bool = False
    """In GGUF files rotary pair j of a head is its rows 2j and 2j + 1, not j and j + head_size / 2."""

    def num_copies(self, config: ModelConfig) -> int:
        counts = {"heads": config.num_heads, "kv_heads": config.num_kv_heads, "experts": config.num_experts}
        return counts.get(self.copies, 1)


@dataclass(frozen=True, slots=True)
class Slot:
    """One weight of a model: its canonical name, which layer and copy it is, and its description."""

    name: str
    layer: int
    copy: int
    weight: Weight


def slots_of(weights: tuple[Weight, ...], config: ModelConfig) -> Iterator[Slot]:
    """Every weight of a model of this shape, once."""
    for weight in weights:
        if weight.when(config):
            layers = config.num_layers if "{i}" in weight.name else 1
            for i in range(layers):
                if weight.in_layer(config, i):
                    for n in range(weight.num_copies(config)):
                        yield Slot(weight.name.format(i=i, n=n), i, n, weight)


def num_rows(dim: Dim, config: ModelConfig) -> int:
    """The size that a dimension has in a model of this shape."""
    sizes: dict[Dim, int] = {
        "one": 1,
        "hidden": config.hidden_size,
        "q": config.q_size,
        "kv": config.kv_size,
        "head": config.head_size,
        "heads": config.num_heads,
        "mlp": config.intermediate_size,
        "expert": config.expert_size,
        "shared": config.shared_expert_size,
        "vocab": config.vocab_size,
        "positions": config.max_model_len,
        "experts": config.num_experts,
    }
    return sizes[dim]


# ---------------------------------------------------------------- the table


_NORMS: tuple[tuple[str, str, str, Condition], ...] = (
    ("attn_norm", "input_layernorm", "attn_norm", lambda c: c.pre_norms),
    ("attn_post_norm", "post_attention_layernorm", "post_attention_norm", lambda c: c.post_norms),
    ("mlp_norm", "post_attention_layernorm", "ffn_norm", lambda c: c.pre_norms and not c.parallel_residual),
    ("mlp_post_norm", "post_feedforward_layernorm", "post_ffw_norm", lambda c: c.post_norms),
)
_MATRICES: tuple[tuple[str, str, str, tuple[Dim, Dim], Condition], ...] = (
    ("q", "self_attn.q_proj", "attn_q", ("q", "hidden"), lambda c: c.attention_bias),
    ("k", "self_attn.k_proj", "attn_k", ("kv", "hidden"), lambda c: c.attention_bias),
    ("v", "self_attn.v_proj", "attn_v", ("kv", "hidden"), lambda c: c.attention_bias),
    ("o", "self_attn.o_proj", "attn_output", ("hidden", "q"), lambda c: c.output_bias),
    ("gate", "mlp.gate_proj", "ffn_gate", ("mlp", "hidden"), lambda c: c.mlp_bias),
    ("up", "mlp.up_proj", "ffn_up", ("mlp", "hidden"), lambda c: c.mlp_bias),
    ("down", "mlp.down_proj", "ffn_down", ("hidden", "mlp"), lambda c: c.mlp_bias),
)
_WHOLE: tuple[Weight, ...] = (
    Weight("embed", Place("model.embed_tokens"), Place("token_embd"), ("vocab", "hidden"), lambda _: True),
    Weight(
        "positions", Place("positions"), Place("position_embd"), ("positions", "hidden"), lambda c: c.learned_positions
    ),
    Weight("norm", Place("model.norm"), Place("output_norm"), ("one", "hidden"), lambda _: True),
    Weight("head", Place("lm_head"), Place("output"), ("vocab", "hidden"), lambda c: not c.tie_embeddings),
)
"""What is not in layers."""
_LAYER, _GGUF_LAYER = "layers.{i}.", "blk.{i}."


def decoder_weights(
    *,
    gguf_rotary: bool = False,
    hf_layer: str = "model.layers.{i}.",
    hf: Mapping[str, str | Place] | None = None,
    gguf: Mapping[str, str | Place] | None = None,
) -> tuple[Weight, ...]:
    """The weights of a family. `gguf_rotary`: its converter permutes Q and K.

    `hf` and `gguf` say where its files keep a weight if not where Llama's do, by the weight's name within the layer;
    so are the names that they give, without `.weight`. Layers are those that begin with `hf_layer`.
    """
    weights: list[Weight] = []
    for whole in _WHOLE:
        weights.append(_matrix(replace(whole, hf=_within("", (hf or {}).get(whole.name, whole.hf)))))
        if whole.name == "norm":
            weights.append(_bias(replace(whole, hf=_within("", (hf or {}).get("norm", whole.hf))), _has_norm_bias))
    for one, has_bias in _layer_weights():
        placed = replace(
            one,
            name=_LAYER + one.name,
            hf=_within(hf_layer, (hf or {}).get(one.name, one.hf)),
            gguf=_within(_GGUF_LAYER, (gguf or {}).get(one.name, one.gguf)),
            gguf_each=None if one.gguf_each is None else _within(_GGUF_LAYER, one.gguf_each),
            gguf_rotary=gguf_rotary and one.name in ("q", "k"),
        )
        weights.append(_matrix(placed))
        if has_bias:
            weights.append(_bias(placed, has_bias))
    return tuple(weights)


def fused(name: str, parts: Mapping[str, Dim], *, transposed: bool = False) -> dict[str, Place]:
    """Places of weights that lie in one tensor, one after the other, by their sizes."""
    return {part: Place(name, tuple(parts.values()), n, transposed) for n, part in enumerate(parts)}


def _layer_weights() -> Iterator[tuple[Weight, Condition | None]]:
    """Those of a layer, named within it, and when they have a bias."""
    for name, hf, gguf, when in _NORMS:
        yield Weight(name, Place(hf), Place(gguf), ("one", "hidden"), when), _has_norm_bias
    copies: Literal["heads", "kv_heads"]
    size: Dim
    for one, size, copies in (("q", "q", "heads"), ("k", "kv", "kv_heads")):
        hf_place, gguf_place = Place(f"self_attn.{one}_norm"), Place(f"attn_{one}_norm")
        norm = Weight(f"{one}_norm", hf_place, gguf_place, ("one", "head"), lambda c: c.qk_norm == "head")
        yield norm, None
        yield replace(norm, shape=("one", size), when=lambda c: c.qk_norm == "all_heads"), None
        hf_place = Place(f"self_attn.{one}_layernorm.norms.{{n}}")
        yield (
            replace(
                norm, name=f"{one}_norm.{{n}}", hf=hf_place, when=lambda c: c.qk_norm == "each_head", copies=copies
            ),
            None,
        )
    sinks = Place("self_attn.sinks", bare=True), Place("attn_sinks")
    yield Weight("sinks", *sinks, ("one", "heads"), lambda c: c.attention_sinks), None
    for name, hf, gguf, shape, has_bias in _MATRICES:
        matrix = Weight(name, Place(hf), Place(gguf), shape, _always)
        if name not in ("gate", "up", "down"):
            yield matrix, has_bias
            continue
        when = _is_gated if name == "gate" else _always
        yield replace(matrix, when=when, in_layer=lambda config, i: not config.has_experts(i)), has_bias
        yield _expert(name, _sized(shape, "expert")), lambda c: c.expert_bias
        shared = _sized(shape, "shared")
        yield _shared(f"shared.{name}", f"shared_expert.{name}_proj", f"ffn_{name}_shexp", shared), None
    router = Weight("router", Place("mlp.gate"), Place("ffn_gate_inp"), ("experts", "hidden"), _always)
    yield replace(router, in_layer=ModelConfig.has_experts), lambda c: c.expert_bias
    yield _shared("shared.router", "shared_expert_gate", "ffn_gate_inp_shexp", ("one", "hidden")), None


def _expert(name: str, shape: tuple[Dim, Dim]) -> Weight:
    return Weight(
        f"experts.{{n}}.{name}",
        Place(f"mlp.experts.{{n}}.{name}_proj"),
        Place(f"ffn_{name}_exps"),
        shape,
        _always,
        copies="experts",
        in_layer=ModelConfig.has_experts,
        gguf_each=Place(f"ffn_{name}.{{n}}"),
    )


def _shared(name: str, hf: str, gguf: str, shape: tuple[Dim, Dim]) -> Weight:
    """Of the expert that all tokens use."""
    return Weight(name, Place(f"mlp.{hf}"), Place(gguf), shape, _has_shared_expert, in_layer=ModelConfig.has_experts)


def _sized(shape: tuple[Dim, Dim], size: Dim) -> tuple[Dim, Dim]:
    """A shape of the MLP's, with another size in its place."""
    rows, cols = shape
    return (size, cols) if rows == "mlp" else (rows, size)


def _has_shared_expert(config: ModelConfig) -> bool:
    return config.shared_expert_size > 0


def _always(_: ModelConfig) -> bool:
    return True


def _is_gated(config: ModelConfig) -> bool:
    return config.gated


def _has_norm_bias(config: ModelConfig) -> bool:
    return config.norm_bias


def _within(prefix: str, place: str | Place) -> Place:
    return Place(prefix + place) if isinstance(place, str) else replace(place, name=prefix + place.name)


def _matrix(weight: Weight) -> Weight:
    """With its full names in the files."""
    each = weight.gguf_each and _ending(weight.gguf_each, "weight")
    return replace(weight, hf=_ending(weight.hf, "weight"), gguf=_ending(weight.gguf, "weight"), gguf_each=each)


def _bias(weight: Weight, has_bias: Condition) -> Weight:
    """The bias that belongs to it."""
    rows, cols = weight.shape
    return replace(
        weight,
        name=weight.name + "_bias",
        hf=_ending(weight.hf, "bias"),
        gguf=_ending(weight.gguf, "bias"),
        gguf_each=None,
        shape=("one", cols if rows == "one" else rows),
        when=lambda config: weight.when(config) and has_bias(config),
    )


def _ending(place: Place, end: str) -> Place:
    if place.bare:
        return place if end == "weight" else replace(place, name=f"{place.name}_{end}")
    return replace(place, name=f"{place.name}.{end}")
