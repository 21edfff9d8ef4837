"""Small vocabularies of both kinds, and second opinions on how they encode."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing

from models.writers import write_gguf

SPACE = "\u2581"
SPECIALS = ("<|begin|>", "<|end|>", "<|turn|>", "</s>", "<s>")

CORPUS = (
    "The quick brown fox jumps over the lazy dog, then the dog sleeps; 12345 and 67890 are numbers.\n"
    "def main():\n    return [x for x in range(10)]\n\n\tprint('hello world')  # comment\n"
    "Über größere Äpfel spricht man nicht. L'été est là, où es-tu? Привет, мир! 你好世界 こんにちは 🙂🙂\n"
    "user assistant system tool the the the and and in in of of to to end start begin turn\n"
)

# ---------------------------------------------------------------- byte-level


def byte_level_backend(specials: Sequence[str] = SPECIALS, vocab_size: int = 500) -> Tokenizer:
    """A byte-level vocabulary trained on the corpus; the specials come last."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([CORPUS] * 3, trainer)
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in specials])
    return backend


def with_beginning(backend: Tokenizer, text: str) -> Tokenizer:
    """The backend, made to begin every text with a token."""
    token = backend.token_to_id(text)
    backend.post_processor = TemplateProcessing(single=f"{text} $A", special_tokens=[(text, token)])
    return backend


def write_tokenizer(folder: Path, backend: Tokenizer, config: Mapping[str, Any] | None = None) -> Path:
    """`tokenizer.json` and `tokenizer_config.json` in a folder; gives the former."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tokenizer.json"
    backend.save(str(path))
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(config or {})))
    return path


# ---------------------------------------------------------------- SentencePiece


@cache
def learned_pieces(num_merges: int = 300) -> list[str]:
    """Pieces in the order in which joining the most frequent neighbours of the corpus makes them."""
    words = [list(SPACE + word.replace("\n", "")) for word in CORPUS.split(" ")]
    pieces: list[str] = []
    for _ in range(num_merges):
        counts: dict[tuple[str, str], int] = {}
        for word in words:
            for pair in pairwise(word):
                counts[pair] = counts.get(pair, 0) + 1
        fresh = {pair: count for pair, count in counts.items() if "".join(pair) not in pieces}
        if not fresh:
            break
        best = max(fresh, key=lambda pair: (fresh[pair], pair))
        pieces.append("".join(best))
        words = [_joined(word, best) for word in words]
    # Runs, where pairs that form the same piece compete.
    return [*pieces, "aa", "aaa", "aaaa", SPACE * 2, SPACE * 3, SPACE * 4, SPACE * 8]


def _joined(word: list[str], pair: tuple[str, str]) -> list[str]:
    out: list[str] = []
    for piece in word:
        if out and (out[-1], piece) == pair:
            out[-1] += piece
        else:
            out.append(piece)
    return out


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """GGUF metadata of a SentencePiece vocabulary: unknown, controls, bytes, merged pieces, characters, a control."""
    merged = list(dict.fromkeys(learned_pieces()))
    characters = sorted({*CORPUS.replace("\n", "").replace(" ", ""), SPACE, "a"} - set(merged))
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *merged,
        *characters,
        "<|turn|>",
    ]
    types = [2, 3, 3, *[6] * 256, *[1] * (len(merged) + len(characters)), 3]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(merged))] + [-1e9] * len(characters) + [0.0]
    keys = {
        "model": "llama",
        "tokens": tokens,
        "token_type": np.array(types, np.int32),
        "scores": np.array(scores, np.float32),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **changes,
    }
    return {"tokenizer.ggml." + key: value for key, value in keys.items() if value is not None}


def sentencepiece_encode(metadata: Mapping[str, Any], text: str) -> list[int]:
    """SentencePiece's own procedure: join the neighbours that form the best piece, leftmost first, until none do."""
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata["tokenizer.ggml.token_type"]
    scores = metadata["tokenizer.ggml.scores"]
    pieces = {piece: token for token, piece in enumerate(tokens) if types[token] == 1}
    symbols = list((SPACE + text).replace(" ", SPACE)) if text else []
    while True:
        pairs = [i for i in range(len(symbols) - 1) if symbols[i] + symbols[i + 1] in pieces]
        if not pairs:
            break
        best = max(pairs, key=lambda i: (scores[pieces[symbols[i] + symbols[i + 1]]], -i))
        symbols[best : best + 2] = [symbols[best] + symbols[best + 1]]
    ids: list[int] = []
    for symbol in symbols:
        ids += [pieces[symbol]] if symbol in pieces else [3 + byte for byte in symbol.encode()]
    return ids


@cache
def kept() -> dict[str, Any]:
    """Models by name, and how SentencePiece cuts the hard texts with them: see `make_sentencepiece`."""
    data = (Path(__file__).parent / "sentencepiece.json.gz").read_bytes()
    values: dict[str, Any] = json.loads(gzip.decompress(data))
    return values


def model_file(folder: Path, name: str) -> Path:
    path = folder / f"{name}.model"
    path.write_bytes(base64.b64decode(kept()[name]["model"]))
    return path


def gguf_of(path: Path, metadata: Mapping[str, Any]) -> Path:
    """A GGUF file that holds nothing but metadata."""
    return write_gguf(path, {"general.architecture": "llama", **metadata}, {})


def byte_level_metadata(backend: Tokenizer, **changes: Any) -> dict[str, Any]:
    """GGUF metadata of a byte-level backend: what a converter would write of it."""
    model = json.loads(backend.to_str())["model"]
    special = {token for token, added in backend.get_added_tokens_decoder().items() if added.special}
    size = backend.get_vocab_size()
    keys = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [backend.id_to_token(token) for token in range(size)],
        "token_type": np.array([3 if token in special else 1 for token in range(size)], np.int32),
        "merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]],
        **changes,
    }
    return {"tokenizer.ggml." + key: value for key, value in keys.items() if value is not None}
