"""What an encoder is made of, in numbers, and what is made of its states: from a Hugging Face or sentence-transformers
folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from chairlift.core.errors import InvalidModel
from chairlift.models.config import Activation
from chairlift.models.fields import MAX_CONTEXT, MAX_HEADS, MAX_LAYERS, MAX_SIZE, Fields
from chairlift.models.files import (
    MAX_CONFIG_BYTES,
    MAX_CONFIG_VALUES,
    exists,
    parse_json,
    read_bytes,
    read_config,
    shown,
)
from chairlift.models.hf_config import ACTIVATIONS

MAX_LABELS = 4096
MAX_LABEL_CHARS = 256

Pooling = Literal["cls", "mean", "last"]
HeadKind = Literal["none", "bert", "roberta"]
LabelActivation = Literal["sigmoid", "softmax", "identity"]

_POOLING_FLAGS: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
_POOLING_NAMES: dict[str, Pooling] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}


@dataclass(frozen=True, slots=True)
class EncoderKind:
    """An architecture: what its tensors' names begin with, where its positions begin, and what is on top."""

    prefix: str
    head: HeadKind
    counts_from_padding: bool
    """Positions begin after the padding token's id, as in RoBERTa."""


_BERT: dict[str, HeadKind] = {"Model": "none", "ForSequenceClassification": "bert"}
_ROBERTA: dict[str, HeadKind] = {"Model": "none", "ForSequenceClassification": "roberta"}
KINDS: dict[str, EncoderKind] = {
    **{f"Bert{end}": EncoderKind("bert.", head, False) for end, head in _BERT.items()},
    **{
        f"{name}{end}": EncoderKind("roberta.", head, True)
        for name in ("Roberta", "XLMRoberta", "Camembert")
        for end, head in _ROBERTA.items()
    },
}
"""By the name that a `config.json` declares."""


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """The numbers that shape an encoder, and what becomes of the states of a text's tokens.

    `first_position` is the position of a text's first token. `max_model_len` counts the special tokens around a text.
    A model with a head classifies: `labels` are what it tells apart. One without gives embeddings: `pooling` says how
    one vector is made of the states, `normalize` whether it gets length 1.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    vocab_size: int
    num_positions: int
    num_types: int
    max_model_len: int
    norm_eps: float
    activation: Activation
    prefix: str = ""
    first_position: int = 0
    head: HeadKind = "none"
    labels: tuple[str, ...] = ()
    label_activation: LabelActivation = "softmax"
    pooling: Pooling = "mean"
    normalize: bool = True

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise InvalidModel(f"{self.num_heads} heads cannot share {self.hidden_size} numbers evenly")
        if self.max_model_len < 1:
            raise InvalidModel("the model has no positions")

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def num_outputs(self) -> int:
        """Numbers of a vector that the model gives."""
        return len(self.labels) if self.head != "none" else self.hidden_size


def is_encoder(folder: Path) -> bool:
    """Whether a model folder declares one of these architectures.

    Raises:
        InvalidModel: its `config.json` cannot be read.
    """
    path = folder / "config.json"
    if not exists(path):
        return False
    return _declared(read_config(path)) in KINDS


def read_encoder_config(folder: Path) -> EncoderConfig:
    """The encoder in a folder; sentence-transformers' own files are heeded where there are any.

    Raises:
        InvalidModel: a file is malformed, or asks for something that is not supported.
    """
    path = folder / "config.json"
    values = read_config(path)
    config = config_from_json(values, shown(path))
    return config if config.head != "none" else _with_modules(config, folder)


def _declared(values: Mapping[str, Any]) -> str:
    declared = values.get("architectures")
    return declared[0] if isinstance(declared, list) and declared and isinstance(declared[0], str) else ""


def config_from_json(values: Mapping[str, Any], where: str) -> EncoderConfig:
    """An encoder from its `config.json`.

    Raises:
        InvalidModel: a field is missing, of the wrong type, out of bounds, or asks for something not supported.
    """
    fields = Fields(values, where)
    kind = KINDS.get(_declared(values))
    if kind is None:
        raise fields.error(f"architecture {shown(_declared(values))} is not an encoder ({', '.join(KINDS)} are)")
    activation = ACTIVATIONS.get(str(fields.get("hidden_act") or "gelu"))
    if activation is None:
        raise fields.error(f"hidden_act {shown(fields.get('hidden_act'))} is not supported")
    if fields.get("position_embedding_type") not in (None, "absolute"):
        raise fields.error("only absolute position embeddings are supported")
    if fields.flag("is_decoder", False):
        raise fields.error("a decoder is not an encoder")
    num_positions = fields.integer("max_position_embeddings", 1, MAX_CONTEXT)
    first = fields.integer("pad_token_id", 0, MAX_SIZE, 1) + 1 if kind.counts_from_padding else 0
    labels = _labels(fields) if kind.head != "none" else ()
    return EncoderConfig(
        hidden_size=fields.integer("hidden_size", 1, MAX_SIZE),
        num_layers=fields.integer("num_hidden_layers", 1, MAX_LAYERS),
        num_heads=fields.integer("num_attention_heads", 1, MAX_HEADS),
        intermediate_size=fields.integer("intermediate_size", 1, MAX_SIZE),
        vocab_size=fields.integer("vocab_size", 1, MAX_SIZE),
        num_positions=num_positions,
        num_types=fields.integer("type_vocab_size", 1, 16, 2),
        max_model_len=num_positions - first,
        norm_eps=fields.number("layer_norm_eps", 0.0, 1.0, 1e-12),
        activation=activation,
        prefix=kind.prefix,
        first_position=first,
        head=kind.head,
        labels=labels,
        label_activation=_label_activation(fields, len(labels)),
    )


def _labels(fields: Fields) -> tuple[str, ...]:
    """What a classifier tells apart, in the order of its outputs."""
    named = fields.get("id2label")
    if named is None:
        return tuple(f"LABEL_{i}" for i in range(fields.integer("num_labels", 1, MAX_LABELS, 2)))
    if not isinstance(named, dict) or not 1 <= len(named) <= MAX_LABELS:
        raise fields.error(f"id2label must be an object of at most {MAX_LABELS} labels")
    labels = [named.get(str(i)) for i in range(len(named))]
    if not all(isinstance(label, str) and len(label) <= MAX_LABEL_CHARS for label in labels):
        raise fields.error("id2label must name the outputs 0, 1, 2 ...")
    return tuple(map(str, labels))


def _label_activation(fields: Fields, num_labels: int) -> LabelActivation:
    """What makes scores of a classifier's outputs: what the model's makers say, else as its problem asks for.

    Source: the names that sentence-transformers writes for cross-encoders, which are those of torch's modules.
    """
    nested = fields.fields("sentence_transformers")
    told = (nested.get("activation_fn") if nested else None) or fields.get("sbert_ce_default_activation_function")
    if told is not None:
        name = str(told).rpartition(".")[2].lower()
        for known in get_args(LabelActivation):
            if name == known:
                return known  # type: ignore[no-any-return]
        raise fields.error(f"activation {shown(told)} is not supported")
    if num_labels == 1 or fields.get("problem_type") == "multi_label_classification":
        return "sigmoid"
    return "identity" if fields.get("problem_type") == "regression" else "softmax"


# ---------------------------------------------------------------- sentence-transformers


def _with_modules(config: EncoderConfig, folder: Path) -> EncoderConfig:
    """What `modules.json` says comes after the encoder, and how long a text may be."""
    path = folder / "modules.json"
    if not exists(path):
        return config
    modules = parse_json(read_bytes(path, MAX_CONFIG_BYTES), shown(path), max_values=MAX_CONFIG_VALUES)
    kinds = [_module(module, path) for module in modules] if isinstance(modules, list) else []
    if not kinds or kinds[0][0] != "Transformer":
        raise InvalidModel(f"{shown(path)}: must be a list of modules that begins with a Transformer")
    config = replace(config, normalize=False)
    for kind, place in kinds[1:]:
        if kind == "Pooling":
            config = replace(config, pooling=_pooling(folder / place / "config.json"))
        elif kind == "Normalize":
            config = replace(config, normalize=True)
        else:
            raise InvalidModel(f"{shown(path)}: module {shown(kind)} is not supported (Pooling and Normalize are)")
    length_path = folder / kinds[0][1] / "sentence_bert_config.json"
    if exists(length_path):
        fields = Fields(read_config(length_path), shown(length_path))
        most = fields.integer("max_seq_length", 1, MAX_CONTEXT, config.max_model_len)
        config = replace(config, max_model_len=min(most, config.max_model_len))
    return config


def _module(module: object, path: Path) -> tuple[str, str]:
    """Kind and folder of a module. Its folder is one inside the model's."""
    kind, place = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
    if not isinstance(kind, str) or not isinstance(place, str) or set(place) & set("/\\\0") or place in (".", ".."):
        raise InvalidModel(f"{shown(path)}: each module must have a type and a path inside the folder")
    return kind.rpartition(".")[2], place


def _pooling(path: Path) -> Pooling:
    values = read_config(path)
    flags = [name for name, value in values.items() if name.startswith("pooling_mode_") and value is True]
    if values.get("pooling_mode") in _POOLING_NAMES:
        return _POOLING_NAMES[values["pooling_mode"]]
    if len(flags) == 1 and flags[0] in _POOLING_FLAGS:
        return _POOLING_FLAGS[flags[0]]
    raise InvalidModel(f"{shown(path)}: pooling must be one of cls, mean and last token")
