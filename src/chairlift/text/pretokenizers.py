"""How byte-level vocabularies cut a text into words before merging, by the names that GGUF files use.

Each recipe is a sequence of cuts; a cut isolates what its pattern matches and keeps the rest as it is. The patterns
are facts of the released tokenizers: changing one changes the tokens of every prompt.

Sources: the `tokenizer.json` of the models named, and ggml's list of names (`tokenizer.ggml.pre`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from chairlift.core.errors import InvalidModel
from chairlift.models.files import shown


@dataclass(frozen=True, slots=True)
class Recipe:
    """The cuts of one family. `ignore_merges`: a word that is in the vocabulary is one token, whatever the merges.

    `adds_bos`: a text begins with the beginning-of-text token unless the file says otherwise.
    """

    cuts: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False
    nfc: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """Cut, then spell each word in the characters that stand for bytes."""
        cuts = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in self.cuts]
        return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cl100k(digits: str) -> str:
    """Words with one leading mark, digits, runs of marks, line ends: the cut of Llama 3, with its variations."""
    return rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"


def _o200k(digits: str, endings: str) -> str:
    """As above, but a word also ends where a lower-case letter is followed by an upper-case one."""
    start = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{start}{_UPPER}*{_LOWER}+{endings}|{start}{_UPPER}+{_LOWER}*{endings}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
    )


_GPT2_RECIPE = Recipe((_GPT2,))
_DIGITS_RECIPE = Recipe((_DIGIT, _GPT2))
_LLAMA3_RECIPE = Recipe((_cl100k(r"\p{N}{1,3}"),), ignore_merges=True, adds_bos=True)
_QWEN2_RECIPE = Recipe((_cl100k(r"\p{N}"),), nfc=True)

RECIPES: dict[str, Recipe] = {
    # What ggml applies to files that name nothing: not any model's own, but what such files have always got.
    "default": Recipe((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _GPT2_RECIPE,
    "phi-2": _GPT2_RECIPE,
    "mpt": _GPT2_RECIPE,
    "olmo": _GPT2_RECIPE,
    "smollm": _DIGITS_RECIPE,
    "starcoder": _DIGITS_RECIPE,
    "refact": _DIGITS_RECIPE,
    "llama-bpe": _LLAMA3_RECIPE,
    "llama3": _LLAMA3_RECIPE,
    "llama-v3": _LLAMA3_RECIPE,
    "falcon3": _LLAMA3_RECIPE,
    "dbrx": Recipe((_cl100k(r"\p{N}{1,3}"),)),
    "smaug-bpe": Recipe((_cl100k(r"\p{N}{1,3}"),)),
    "qwen2": _QWEN2_RECIPE,
    "deepseek-r1-qwen": _QWEN2_RECIPE,
    "stablelm2": Recipe((_cl100k(r"\p{N}"),)),
    "tekken": Recipe((_o200k(r"\p{N}", ""),), ignore_merges=True, adds_bos=True),
    "gpt-4o": Recipe((_o200k(r"\p{N}{1,3}", _ENDINGS + "?"),)),
    "llama4": Recipe((_o200k(r"\p{N}{1,3}", _ENDINGS + "?"),)),
}


def recipe_named(name: str) -> Recipe:
    """The recipe of a GGUF file's `tokenizer.ggml.pre`.

    Raises:
        InvalidModel: there is none; guessing would give every prompt slightly wrong tokens.
    """
    try:
        return RECIPES[name]
    except KeyError:
        raise InvalidModel(f"unknown pre-tokenizer '{shown(name)}' (known: {', '.join(sorted(RECIPES))})") from None
