"""Writers of small model files in both formats, for tests: every encoding, and a random tiny Llama.

Nothing here is taken from `chairlift.models`: the writers are the second opinion about what the formats mean.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models.block_writers import ENCODERS, UNITS, join

Floats = NDArray[np.float32]
Encoded = tuple[str, tuple[int, ...], bytes]
"""A stored tensor: encoding name, row-major shape, bytes."""

GGUF_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12,
    "Q5_K": 13, "Q6_K": 14, "IQ4_NL": 20, "IQ4_XS": 23, "BF16": 30, "MXFP4": 39,
}  # fmt: skip
GGUF_DTYPES = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "b1": 7, "u8": 10, "i8": 11, "f8": 12}


# ---------------------------------------------------------------- encodings


def encode(numbers: Floats, encoding: str) -> Encoded:
    """Numbers `[..., cols]` in one of the encodings; quantised ones need `cols` to be a multiple of 32, or of 256."""
    numbers = np.ascontiguousarray(numbers, np.float32)
    shape = numbers.shape
    if encoding == "F32":
        return encoding, shape, numbers.astype("<f4").tobytes()
    if encoding == "F16":
        return encoding, shape, numbers.astype("<f2").tobytes()
    if encoding == "BF16":
        bits = numbers.view(np.uint32).astype(np.uint64)
        return encoding, shape, ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()
    blocks = numbers.reshape(-1, 32)
    if encoding == "Q8_0":
        return encoding, shape, _encode_q8_0(blocks)
    if encoding == "Q4_0":
        return encoding, shape, _encode_q4_0(blocks)
    if encoding == "Q4_1":
        return encoding, shape, _encode_q4_1(blocks)
    return encoding, shape, ENCODERS[encoding](numbers.reshape(-1, UNITS[encoding][0]))


def _encode_q8_0(blocks: Floats) -> bytes:
    step = (np.abs(blocks).max(axis=1) / 127).astype("<f2")
    quants = np.clip(np.rint(blocks * _inverse(step)), -127, 127).astype(np.int8)
    return join(step, quants.view(np.uint8))


def _encode_q4_0(blocks: Floats) -> bytes:
    extreme = blocks[np.arange(len(blocks)), np.abs(blocks).argmax(axis=1)]
    step = (extreme / -8).astype("<f2")
    quants = np.clip(np.rint(blocks * _inverse(step)) + 8, 0, 15).astype(np.uint8)
    return join(step, quants[:, :16] | quants[:, 16:] << 4)


def _encode_q4_1(blocks: Floats) -> bytes:
    low = blocks.min(axis=1).astype("<f2")
    step = ((blocks.max(axis=1) - blocks.min(axis=1)) / 15).astype("<f2")
    quants = np.clip(np.rint((blocks - low.astype(np.float32)[:, None]) * _inverse(step)), 0, 15).astype(np.uint8)
    return join(step, low, quants[:, :16] | quants[:, 16:] << 4)


def _inverse(step: NDArray[np.float16]) -> Floats:
    wide = step.astype(np.float32)[:, None]
    return np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide != 0)


# ---------------------------------------------------------------- files


def write_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Encoded], *, alignment: int = 32, version: int = 3
) -> Path:
    """A GGUF file. Metadata values: str, bool, int (u32), float (f32), list of str, or a NumPy array or scalar."""
    head = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(metadata))]
    for key, value in metadata.items():
        head += [gguf_string(key), gguf_value(value)]
    offset = 0
    body = []
    for name, (encoding, shape, data) in tensors.items():
        dims = shape[::-1] or (1,)
        head.append(gguf_string(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims))
        head.append(struct.pack("<IQ", GGUF_TYPES[encoding], offset))
        padding = -len(data) % alignment
        body.append(data + b"\0" * padding)
        offset += len(data) + padding
    start = b"".join(head)
    path.write_bytes(start + b"\0" * (-len(start) % alignment) + b"".join(body))
    return path


def gguf_string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def gguf_value(value: Any) -> bytes:
    """A typed metadata value: type, then content."""
    if isinstance(value, str | bytes):
        return struct.pack("<I", 8) + gguf_string(value)
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(gguf_string(item) for item in value)
    array = np.asarray(value)
    kind = GGUF_DTYPES[array.dtype.str[1:]]
    if array.ndim == 0:
        return struct.pack("<I", kind) + array.tobytes()
    return struct.pack("<IIQ", 9, kind, array.size) + array.tobytes()


def write_safetensors(path: Path, tensors: Mapping[str, Encoded], metadata: Mapping[str, str] | None = None) -> Path:
    """A safetensors file of F32, F16 and BF16 tensors."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    offset = 0
    for name, (encoding, shape, data) in tensors.items():
        header[name] = {"dtype": encoding, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))
    return path


# ---------------------------------------------------------------- a tiny Llama


@dataclass
class TinyLlama:
    """A random Llama checkpoint: `config` as in config.json, `weights` by Hugging Face name, float32 `[rows, cols]`.

    Only numbers that bfloat16 and float16 hold exactly, so that both formats and all three unquantised encodings
    store the same model.
    """

    config: dict[str, Any]
    weights: dict[str, Floats] = field(default_factory=dict)

    @property
    def head_size(self) -> int:
        return int(self.config["head_dim"])

    def write_folder(self, folder: Path, encoding: Literal["F32", "F16", "BF16"] = "F32", num_shards: int = 1) -> Path:
        """A Hugging Face folder; with more than one shard, an index beside them."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        tensors = {name: encode(numbers, encoding) for name, numbers in self.weights.items()}
        if num_shards == 1:
            write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
            return folder
        weight_map = {}
        for shard in range(num_shards):
            file = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
            part = dict(list(tensors.items())[shard::num_shards])
            write_safetensors(folder / file, part, {"format": "pt"})
            weight_map.update(dict.fromkeys(part, file))
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        return folder

    def write_gguf(self, path: Path, encoding: str = "F32", extra: Mapping[str, Any] | None = None) -> Path:
        """A GGUF file: matrices in `encoding`, vectors in F32, Q and K rows interleaved as llama.cpp's converter does.

        `extra` metadata is added to (or replaces) what is derived from the config; a vocabulary of made-up tokens
        is written unless `extra` brings its own.
        """
        tensors = {}
        for name, numbers in self.weights.items():
            heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
            if heads is not None:
                numbers = interleave(numbers, self.config[heads])
            tensors[gguf_name(name)] = encode(numbers, encoding if numbers.ndim > 1 else "F32")
        return write_gguf(path, {**self.gguf_metadata(), **(extra or {})}, tensors)

    def gguf_metadata(self) -> dict[str, Any]:
        config = self.config
        vocab_size = config["vocab_size"]
        return {
            "general.architecture": "llama",
            "general.name": "tiny",
            "llama.block_count": config["num_hidden_layers"],
            "llama.context_length": config["max_position_embeddings"],
            "llama.embedding_length": config["hidden_size"],
            "llama.feed_forward_length": config["intermediate_size"],
            "llama.attention.head_count": config["num_attention_heads"],
            "llama.attention.head_count_kv": config["num_key_value_heads"],
            "llama.attention.key_length": config["head_dim"],
            "llama.attention.value_length": config["head_dim"],
            "llama.rope.dimension_count": config["head_dim"],
            "llama.rope.freq_base": float(config["rope_theta"]),
            "llama.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
            "llama.vocab_size": vocab_size,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": [f"t{i}" for i in range(vocab_size)],
            "tokenizer.ggml.token_type": np.ones(vocab_size, np.int32),
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.bos_token_id": config["bos_token_id"],
            "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        }


def tiny_llama(
    seed: int = 0,
    *,
    hidden_size: int = 64,
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_size: int = 32,
    intermediate_size: int = 96,
    vocab_size: int = 128,
    max_model_len: int = 512,
    tied: bool = False,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    **config: Any,
) -> TinyLlama:
    """A random Llama whose logits have a standard deviation of at least 3 and whose attention is far from uniform.

    Further keyword arguments go into the config as they are (`rope_scaling=...`, `sliding_window=...`).
    """
    rng = np.random.default_rng(seed)
    tiny = TinyLlama(
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": hidden_size,
            "num_hidden_layers": num_layers,
            "num_attention_heads": num_heads,
            "num_key_value_heads": num_kv_heads,
            "head_dim": head_size,
            "intermediate_size": intermediate_size,
            "vocab_size": vocab_size,
            "max_position_embeddings": max_model_len,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": tied,
            "attention_bias": attention_bias,
            "mlp_bias": mlp_bias,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **config,
        }
    )

    def matrix(name: str, rows: int, cols: int, gain: float, bias: bool = False) -> None:
        tiny.weights[name + ".weight"] = _coarse(rng.normal(0.0, gain / np.sqrt(cols), (rows, cols)))
        if bias:
            tiny.weights[name + ".bias"] = _coarse(rng.normal(0.0, 0.5, rows))

    def vector(name: str) -> None:
        tiny.weights[name + ".weight"] = _coarse(rng.uniform(0.6, 1.4, hidden_size))

    # Inputs of every matrix have a mean square near one, so a gain is the standard deviation of its outputs: queries
    # and keys of 2 give attention scores with one of 4 or so, and a head of 4 logits above 3.
    head_gain = 4.0
    matrix("model.embed_tokens", vocab_size, hidden_size, head_gain if tied else np.sqrt(hidden_size))
    for i in range(num_layers):
        layer = f"model.layers.{i}."
        vector(layer + "input_layernorm")
        matrix(layer + "self_attn.q_proj", num_heads * head_size, hidden_size, 2.0, attention_bias)
        matrix(layer + "self_attn.k_proj", num_kv_heads * head_size, hidden_size, 2.0, attention_bias)
        matrix(layer + "self_attn.v_proj", num_kv_heads * head_size, hidden_size, 1.0, attention_bias)
        matrix(layer + "self_attn.o_proj", hidden_size, num_heads * head_size, 1.0, attention_bias)
        vector(layer + "post_attention_layernorm")
        matrix(layer + "mlp.gate_proj", intermediate_size, hidden_size, 1.5, mlp_bias)
        matrix(layer + "mlp.up_proj", intermediate_size, hidden_size, 1.5, mlp_bias)
        matrix(layer + "mlp.down_proj", hidden_size, intermediate_size, 1.0, mlp_bias)
    vector("model.norm")
    if not tied:
        matrix("lm_head", vocab_size, hidden_size, head_gain)
    return tiny


def _coarse(numbers: NDArray[np.float64]) -> Floats:
    """Rounded to 8 significant bits and multiples of 2^-15: exact as bfloat16 and as float16."""
    scale = np.exp2(7 - np.floor(np.log2(np.maximum(np.abs(numbers), 2.0**-8))))
    coarse: NDArray[np.float64] = np.rint(numbers * scale) / scale
    return coarse.astype(np.float32)


GGUF_STEMS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""What the tensors of a Llama are called, layer number and kind aside, by their Hugging Face names."""


def gguf_name(hf_name: str) -> str:
    """The GGUF name of a Hugging Face Llama tensor."""
    stem, kind = hf_name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, rest = stem.split(".", 3)
        return f"blk.{layer}.{GGUF_STEMS[rest]}.{kind}"
    return f"{GGUF_STEMS[stem]}.{kind}"


def interleave(numbers: Floats, num_heads: int) -> Floats:
    """Rows of Q or K as llama.cpp's converter leaves them: rotary pair j of a head in rows 2j and 2j + 1."""
    head_size = len(numbers) // num_heads
    out = np.empty_like(numbers)
    for head in range(num_heads):
        for j in range(head_size // 2):
            out[head * head_size + 2 * j] = numbers[head * head_size + j]
            out[head * head_size + 2 * j + 1] = numbers[head * head_size + j + head_size // 2]
    return out
