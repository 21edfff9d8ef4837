"""How byte-level vocabularies cut a text into words before merging, by the names that GGUF files use.

Each recipe is a sequence of cuts; a cut isolates what its pattern matches and keeps the rest as it is. The patterns
are facts of the released tokenizers: changing one changes the tokens of every prompt.

Sources: the `tokenizer.json` of the models named, and ggml's list of names (`tokenizer.ggml.pre`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from chairlift.core.errors import InvalidModel
from chairlift.models.files import shown


@dataclass(frozen=True, slots=True)
class Recipe:
    """The cuts of one family. `ignore_merges`: a word that is in the vocabulary is one token, whatever the merges.

    `adds_bos`: a text begins with the beginning-of-text token unless the file says otherwise. `nfc`: characters and
    their accents are composed before, unless the file says otherwise.
    """

    cuts: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False
    nfc: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """Cut, then spell each word in the characters that stand for bytes."""
        cuts = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in self.cuts]
        return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


_BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
_CJK_WIDE = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_MARKS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_CASED = (
    r"\s?["
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
    "]+"
)
"""Letters with case, as the makers listed them: not quite those of any version of Unicode."""
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SEED_CODER = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_TAIL}"


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
_NEOX_RECIPE = Recipe((_GPT2,), nfc=True)
_DIGITS_RECIPE = Recipe((_DIGIT, _GPT2))
_LLAMA3_RECIPE = Recipe((_cl100k(r"\p{N}{1,3}"),), ignore_merges=True, adds_bos=True)
_CL100K_RECIPE = Recipe((_cl100k(r"\p{N}{1,3}"),))
_QWEN2_RECIPE = Recipe((_cl100k(r"\p{N}"),), nfc=True)
_O200K_RECIPE = Recipe((_o200k(r"\p{N}{1,3}", _ENDINGS + "?"),))
_BLOOM_RECIPE = Recipe((_BLOOM,))

RECIPES: dict[str, Recipe] = {
    # What ggml applies to files that name nothing: not any model's own, but what such files have always got.
    "default": Recipe((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _GPT2_RECIPE,
    "phi-2": _GPT2_RECIPE,
    "exaone4": _GPT2_RECIPE,
    "jais": _GPT2_RECIPE,
    "mpt": _NEOX_RECIPE,
    "olmo": _NEOX_RECIPE,
    "smollm": _DIGITS_RECIPE,
    "starcoder": _DIGITS_RECIPE,
    "refact": _DIGITS_RECIPE,  # Granite 3 names itself so
    "codeshell": _DIGITS_RECIPE,
    "exaone": _DIGITS_RECIPE,
    "minerva-7b": _DIGITS_RECIPE,
    "command-r": Recipe((_DIGIT, _GPT2), nfc=True),
    "llama-bpe": _LLAMA3_RECIPE,
    "llama3": _LLAMA3_RECIPE,
    "llama-v3": _LLAMA3_RECIPE,
    "falcon3": _LLAMA3_RECIPE,
    "falcon-h1": _LLAMA3_RECIPE,
    "lfm2": _LLAMA3_RECIPE,
    "midm-2.0": _LLAMA3_RECIPE,
    "smaug-bpe": Recipe((_cl100k(r"\p{N}{1,3}"),), ignore_merges=True),  # Llama 3's; SmolLM3 names itself so
    "dbrx": _CL100K_RECIPE,  # Phi-4, OLMo 2 and Granite 4 name themselves so
    "glm4": _CL100K_RECIPE,
    "chatglm-bpe": _CL100K_RECIPE,
    "qwen2": _QWEN2_RECIPE,  # Qwen3 too
    "deepseek-r1-qwen": _QWEN2_RECIPE,
    "megrez": _QWEN2_RECIPE,
    "stablelm2": _QWEN2_RECIPE,
    "seed-coder": Recipe((_SEED_CODER,)),
    "tekken": Recipe((_o200k(r"\p{N}", ""),), ignore_merges=True, adds_bos=True),
    "gpt-4o": _O200K_RECIPE,
    "llama4": _O200K_RECIPE,
    "kanana2": _O200K_RECIPE,
    "deepseek-llm": Recipe((r"[\r\n]", _CASED, _MARKS, r"\s+$", _CJK_WIDE, _DIGIT)),
    "deepseek-coder": Recipe((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_WIDE, _DIGIT)),
    "deepseek-v3": Recipe((r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK3)),
    "bloom": _BLOOM_RECIPE,
    "poro-chat": _BLOOM_RECIPE,
    "gpt3-finnish": _BLOOM_RECIPE,
    "viking": Recipe((_BLOOM, _DIGIT)),
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
