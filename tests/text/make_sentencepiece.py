"""Makes `sentencepiece.json.gz`: small models of each kind, and how SentencePiece itself cuts the hard texts.

Needs the packages `sentencepiece` and `protobuf`, which the tests do not: `python tests/text/make_sentencepiece.py`.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import sentencepiece  # type: ignore[import-not-found]

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from text.hard_texts import HARD_TEXTS  # noqa: E402

COMMON: dict[str, Any] = {"hard_vocab_limit": False, "minloglevel": 2, "num_threads": 1, "character_coverage": 0.99}
PLAIN: dict[str, Any] = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
MODELS: dict[str, dict[str, Any]] = {
    # Llama 2, Mistral, Phi-3: bytes for what no piece holds, a space before the text, every other space kept.
    "llama": {**PLAIN, "model_type": "bpe", "vocab_size": 620, "byte_fallback": True, "split_digits": True,
              "allow_whitespace_only_pieces": True},
    # Gemma: no space before the text, line ends and runs of spaces as pieces of their own.
    "gemma": {**PLAIN, "model_type": "bpe", "vocab_size": 620, "byte_fallback": True, "split_digits": True,
              "add_dummy_prefix": False, "user_defined_symbols": ["\n", "\n\n", "▁▁", "▁▁▁", "<start_of_turn>"]},
    # T5, XLM-R: the likeliest pieces, one space for several, characters replaced, no bytes.
    "t5": {"model_type": "unigram", "vocab_size": 400},
    "unigram_bytes": {**PLAIN, "model_type": "unigram", "vocab_size": 620, "byte_fallback": True},
    # Pieces of the maker's own beside a space before the text; one of them can never be cut.
    "own_bpe": {"model_type": "bpe", "vocab_size": 620, "byte_fallback": True, "remove_extra_whitespaces": False,
                "user_defined_symbols": ["<sep>", "▁▁", "\n\n", "foo bar", "ﬁ"]},
    "own_unigram": {"model_type": "unigram", "vocab_size": 620, "byte_fallback": True, "character_coverage": 1.0,
                    "remove_extra_whitespaces": False, "user_defined_symbols": ["<sep>", "▁▁", "\n\n", "foo bar", "ﬁ"]},
}  # fmt: skip
RULES = {
    "ﬁ": "fi",
    "ﬀ": "ff",
    "　": " ",
    "\t": " ",
    "\n": " ",
    "ẞ": "ss",
    "ß": "ss",
    "e\u0301": "é",
    "A\u030a": "Å",
    "ㄱㅏ": "가",
    **{chr(code + 0xFEE0): chr(code) for code in range(0x21, 0x7F)},
}


def rules_file(folder: Path) -> str:
    path = folder / "rules.tsv"
    lines = ["\t".join(" ".join(f"{ord(c):X}" for c in side) for side in rule) for rule in RULES.items()]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def main() -> None:
    corpus = (HERE.parent.parent / "docs" / "architecture.md").read_text().splitlines() + list(HARD_TEXTS)
    kept: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, options in MODELS.items():
            rules = {} if "normalization_rule_name" in options else {"normalization_rule_tsv": rules_file(Path(folder))}
            made = io.BytesIO()
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(corpus), model_writer=made, **{**COMMON, **options}, **rules
            )
            model = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())
            ids = [model.encode(text) for text in HARD_TEXTS]
            kept[name] = {"model": base64.b64encode(made.getvalue()).decode(), "ids": ids}
    data = gzip.compress(json.dumps(kept).encode(), 9, mtime=0)
    (HERE / "sentencepiece.json.gz").write_bytes(data)


if __name__ == "__main__":
    main()
