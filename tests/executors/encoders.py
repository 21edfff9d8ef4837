"""Tiny random encoders, the same on every machine, and the texts whose vectors are stored in `encoder_fixtures.npz`.

Imported by the tests and by `make_encoder_fixtures.py`, which runs where there is no Chairlift: NumPy only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.writers import encode, write_safetensors

FIXTURES = Path(__file__).parent / "encoder_fixtures.npz"
VOCAB_SIZE = 99

_BERT: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_act": "gelu",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 48,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
_ONE = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
_THREE = {"id2label": {"0": "no", "1": "maybe", "2": "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}
_ROBERTA = {"model_type": "roberta", "type_vocab_size": 1, "pad_token_id": 1, "max_position_embeddings": 50}

CONFIGS: dict[str, dict[str, Any]] = {
    "bert": _BERT,
    "bert_pair": {**_BERT, "architectures": ["BertForSequenceClassification"], **_ONE},
    "roberta": {**_BERT, **_ROBERTA, "architectures": ["RobertaModel"], "hidden_act": "gelu_new"},
    "roberta_labels": {
        **_BERT,
        **_ROBERTA,
        **_THREE,
        "architectures": ["RobertaForSequenceClassification"],
        "hidden_act": "relu",
    },
}
LENGTHS = (1, 2, 7, 8, 9, 30, 48)

TEXTS = (
    "hello world",
    "A chairlift never stops: people step on and off at every pass.",
    "Where is the station? It's over there, next to the café - you can't miss it!",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich",
    "你好 世界",
    "x",
    "naïve façade (re-opened): 50 % off!",
    "numbers 1234567890 3.14159 and a_long_identifier_with_underscores",
    "one two three four five six seven eight nine ten " * 5,
    "the text that is longer than anything this model reads " * 40,
)
"""Of the MiniLM fixture."""


def sequences(name: str) -> list[tuple[list[int], int]]:
    """Token ids, and how many of them are a first text (0: all), of the stored outputs of a checkpoint."""
    rng = np.random.default_rng(len(name))
    pairs = name == "bert_pair"
    return [
        (rng.integers(2, VOCAB_SIZE, length).tolist(), max(1, length // 3) if pairs and length > 2 else 0)
        for length in LENGTHS
    ]


def write_encoder(name: str, folder: Path, **changes: Any) -> Path:
    """Write `config.json`, `vocab.txt` and `model.safetensors` into a new folder; returns the folder."""
    config = CONFIGS[name] | changes
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(VOCAB_SIZE - 4))]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    weights = _weights(config, np.random.default_rng(sorted(CONFIGS).index(name)))
    write_safetensors(folder / "model.safetensors", {key: encode(value, "F32") for key, value in weights.items()})
    return folder


def _weights(config: dict[str, Any], rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    """Random weights by their Hugging Face names; attention is sharp enough for who attends to whom to show."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    architecture = config["architectures"][0]
    prefix = "" if architecture.endswith("Model") else config["model_type"] + "."
    weights: dict[str, NDArray[np.float32]] = {}

    def linear(name: str, rows: int, cols: int, scale: float = 1.0) -> None:
        weights[name + ".weight"] = (rng.standard_normal((rows, cols)) * scale / np.sqrt(cols)).astype(np.float32)
        weights[name + ".bias"] = (0.2 * rng.standard_normal(rows)).astype(np.float32)

    def norm(name: str) -> None:
        weights[name + ".weight"] = (1 + 0.2 * rng.standard_normal(hidden)).astype(np.float32)
        weights[name + ".bias"] = (0.2 * rng.standard_normal(hidden)).astype(np.float32)

    for name, rows in (
        ("word_embeddings", config["vocab_size"]),
        ("position_embeddings", config["max_position_embeddings"]),
        ("token_type_embeddings", config["type_vocab_size"]),
    ):
        weights[f"{prefix}embeddings.{name}.weight"] = rng.standard_normal((rows, hidden)).astype(np.float32)
    norm(f"{prefix}embeddings.LayerNorm")
    for i in range(config["num_hidden_layers"]):
        layer = f"{prefix}encoder.layer.{i}."
        for part in ("query", "key", "value"):
            linear(f"{layer}attention.self.{part}", hidden, hidden, 1.7)
        linear(f"{layer}attention.output.dense", hidden, hidden)
        norm(f"{layer}attention.output.LayerNorm")
        linear(f"{layer}intermediate.dense", inner, hidden)
        linear(f"{layer}output.dense", hidden, inner)
        norm(f"{layer}output.LayerNorm")
    if architecture.startswith("Bert"):
        linear(f"{prefix}pooler.dense", hidden, hidden)
    if architecture.endswith("Classification"):
        num_labels = len(config["id2label"])
        if architecture.startswith("Bert"):
            linear("classifier", num_labels, hidden, 3.0)
        else:
            linear("classifier.dense", hidden, hidden)
            linear("classifier.out_proj", num_labels, hidden, 3.0)
    return weights
