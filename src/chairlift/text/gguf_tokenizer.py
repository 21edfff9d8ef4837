"""The tokenizer that a GGUF file carries in its metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers import AddedToken as BackendToken
from tokenizers import decoders, models, normalizers, pre_tokenizers

from chairlift.models import GGUF
from chairlift.models.files import shown
from chairlift.text.charsmap import Replacements
from chairlift.text.pieces import MAX_PIECE_CHARS, MAX_TOKENS, Decoding
from chairlift.text.pretokenizers import recipe_named
from chairlift.text.sentencepiece import SPACE, SentencePiece, TextNormalizer, TokenType
from chairlift.text.specials import AddedToken
from chairlift.text.tokenizer import Tokenizer, built

END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>")
"""Spellings of tokens that end an answer. Files made from a base model name only the end of the text, and an answer
would run on past the end of its turn."""


def gguf_tokenizer(gguf: GGUF) -> Tokenizer:
    """Build the tokenizer from `tokenizer.ggml.*`.

    Raises:
        InvalidModel: a key is missing or malformed, or the file names a kind of tokenizer that is not known.
    """
    kind = gguf.text("tokenizer.ggml.model")
    build = _BUILDERS.get(kind)
    if build is None:
        raise gguf.error(f"tokenizer model '{shown(kind)}' is not supported ({', '.join(_BUILDERS)} are)")
    pieces, types = _pieces(gguf)
    if len(set(pieces)) != len(pieces):
        raise gguf.error("tokenizer.ggml.tokens spells two tokens alike")
    swallows = _swallows_space_after(gguf)
    added = [
        AddedToken(
            token,
            pieces[token],
            special=kind != TokenType.USER_DEFINED,
            rstrip=swallows and kind == TokenType.CONTROL and pieces[token] not in ("<s>", "<|endoftext|>"),
        )
        for token, kind in enumerate(types)
        if kind in (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED)
    ]
    parts = build(gguf, pieces, types)
    backend = parts.backend
    if parts.normalize is None:
        backend.add_tokens([BackendToken(token.text, special=token.special, normalized=False) for token in added])
        if any(backend.token_to_id(token.text) != token.id for token in added):
            raise gguf.error("a special token of tokenizer.ggml.tokens cannot be told from another token")
    backend.encode_special_tokens = True
    words = parts.decoding.kind == "words"
    begins_with_class = words and not gguf.has("tokenizer.ggml.bos_token_id")
    bos = _token_id(gguf, "cls" if begins_with_class else "bos", len(pieces))
    eos = _token_id(gguf, "seperator" if words else "eos", len(pieces))  # spelled so in the format
    adds_end = gguf.flag(
        "tokenizer.ggml.add_sep_token" if words else "tokenizer.ggml.add_eos_token", words or kind == "t5"
    )
    return Tokenizer(
        backend,
        backend,
        added,
        parts.decoding,
        normalize=parts.normalize,
        words=[token for token in added if token.id in parts.words and not token.special],
        prefix=[bos] if bos is not None and gguf.flag("tokenizer.ggml.add_bos_token", parts.adds_bos) else [],
        suffix=[eos] if eos is not None and adds_end else [],
        bos_token_id=bos,
        eos_token_ids=_ends(gguf, added, eos, len(pieces)),
        unk_token_id=_token_id(gguf, "unknown", len(pieces)),
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """A backend, how it spells bytes, and whether a text begins with the BOS token by default.

    With `normalize`, which is done to a text before, the backend has its added tokens but for those of `words`.
    """

    backend: tokenizers.Tokenizer
    decoding: Decoding
    adds_bos: bool
    normalize: TextNormalizer | None = None
    words: range = range(0)


def _pieces(gguf: GGUF) -> tuple[list[str], list[int]]:
    pieces = gguf.strings("tokenizer.ggml.tokens")
    if not 0 < len(pieces) <= MAX_TOKENS:
        raise gguf.error(f"tokenizer.ggml.tokens has {len(pieces)} tokens; at most {MAX_TOKENS} are supported")
    if max(map(len, pieces)) > MAX_PIECE_CHARS:
        raise gguf.error(f"tokenizer.ggml.tokens spells a token with more than {MAX_PIECE_CHARS} characters")
    pieces = [piece or f"[EMPTY_{token}]" for token, piece in enumerate(pieces)]
    if not gguf.has("tokenizer.ggml.token_type"):
        return pieces, [TokenType.NORMAL] * len(pieces)
    types = [int(kind) for kind in gguf.numbers("tokenizer.ggml.token_type").tolist()]
    if len(types) != len(pieces):
        raise gguf.error("tokenizer.ggml.token_type and tokenizer.ggml.tokens differ in length")
    return pieces, types


def _byte_level(gguf: GGUF, pieces: list[str], types: list[int]) -> _Parts:
    recipe = recipe_named(gguf.text("tokenizer.ggml.pre", "default"))
    merges = []
    for merge in gguf.strings("tokenizer.ggml.merges"):
        left, space, right = merge[1:].partition(" ")  # a piece may begin with a space, but never holds one
        if not space:
            raise gguf.error(f"tokenizer.ggml.merges: '{shown(merge)}' is no pair")
        merges.append((merge[0] + left, right))
    vocab = {piece: token for token, piece in enumerate(pieces)}
    backend = _backend(
        gguf, lambda: models.BPE(vocab=vocab, merges=merges, fuse_unk=False, ignore_merges=recipe.ignore_merges)
    )
    if gguf.flag("tokenizer.ggml.normalizer.nfc", recipe.nfc):
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = recipe.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return _Parts(backend, Decoding("byte_level"), recipe.adds_bos)


def _sentencepiece(gguf: GGUF, pieces: list[str], types: list[int]) -> _Parts:
    """SentencePiece's vocabulary. User-defined pieces are written with spaces; those after all others were added."""
    unigram = gguf.text("tokenizer.ggml.model") == "t5"
    scores = gguf.numbers("tokenizer.ggml.scores").tolist()
    if len(scores) != len(pieces):
        raise gguf.error("tokenizer.ggml.scores and tokenizer.ggml.tokens differ in length")
    end = len(types) - next((n for n, kind in enumerate(reversed(types)) if kind == TokenType.NORMAL), len(types))
    taken = set(pieces)
    for token, kind in enumerate(types):
        spelled = pieces[token].replace(" ", SPACE)
        if kind == TokenType.USER_DEFINED and spelled not in taken:
            pieces[token] = spelled
    model = SentencePiece(
        "unigram" if unigram else "bpe",
        pieces,
        scores,
        [TokenType.CONTROL if kind == TokenType.USER_DEFINED and n >= end else kind for n, kind in enumerate(types)],
        _token_id(gguf, "unknown", len(pieces)),
        adds_space=gguf.flag("tokenizer.ggml.add_space_prefix", not unigram),
        removes_spaces=gguf.flag("tokenizer.ggml.remove_extra_whitespaces", False),
        replacements=_replacements(gguf),
    )
    backend = built(model.backend, shown(gguf.path))
    words = range(end, len(types))
    return _Parts(backend, model.decoding(), not unigram, model.normalizer(later_too=True), words)


def _word_pieces(gguf: GGUF, pieces: list[str], types: list[int]) -> _Parts:
    """BERT's vocabulary. The format marks what begins a word, BERT itself what does not."""
    spellings = {}
    for token, piece in enumerate(pieces):
        is_text = types[token] == TokenType.NORMAL and not (piece.startswith("[") and piece.endswith("]"))
        spelled = piece.removeprefix(SPACE) if piece.startswith(SPACE) else f"##{piece}"
        spellings[spelled if is_text else piece] = token
    if len(spellings) != len(pieces):
        raise gguf.error("tokenizer.ggml.tokens spells two tokens alike")
    lowercase = gguf.flag("tokenizer.ggml.normalizer.lowercase", True)
    strips_accents = gguf.flag("tokenizer.ggml.normalizer.strip_accents", lowercase)
    unknown = _token_id(gguf, "unknown", len(pieces))
    name = "[UNK]" if unknown is None else pieces[unknown]
    if name not in spellings:
        raise gguf.error("tokenizer.ggml.tokens lacks a token for unknown words")

    def build() -> tokenizers.Tokenizer:
        backend = tokenizers.Tokenizer(models.WordPiece(spellings, unk_token=name, max_input_chars_per_word=100))
        backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strips_accents)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return backend

    return _Parts(built(build, shown(gguf.path)), Decoding("words", strips_space=True), True)


_BUILDERS = {"gpt2": _byte_level, "llama": _sentencepiece, "t5": _sentencepiece, "bert": _word_pieces}


def _replacements(gguf: GGUF) -> Replacements | None:
    key = "tokenizer.ggml.precompiled_charsmap"
    if not gguf.has(key):
        return None
    numbers = gguf.numbers(key)
    if numbers.itemsize != 1:
        raise gguf.error(f"{key} is malformed: it is no array of bytes")
    try:
        return Replacements(numbers.tobytes())
    except ValueError as error:
        raise gguf.error(f"{key} is malformed: {error}") from error


def _backend(gguf: GGUF, build: Callable[[], models.BPE]) -> tokenizers.Tokenizer:
    return built(lambda: tokenizers.Tokenizer(build()), shown(gguf.path))


def _token_id(gguf: GGUF, name: str, num_tokens: int) -> int | None:
    """A special token's id, None if the file names none."""
    key = f"tokenizer.ggml.{name}_token_id"
    if not gguf.has(key):
        return None
    token = gguf.integer(key)
    if not 0 <= token < num_tokens:
        raise gguf.error(f"{key} is {token}, outside the vocabulary of {num_tokens} tokens")
    return token


def _swallows_space_after(gguf: GGUF) -> bool:
    """Whether special tokens swallow the white space after them. The format has no field for it.

    The SentencePiece vocabularies of Phi-3 and 3.5 do; those of later Phi models are byte-level.
    """
    return gguf.text("general.architecture", "") == "phi3" and gguf.text("tokenizer.ggml.model") == "llama"


def _ends(gguf: GGUF, added: Sequence[AddedToken], eos: int | None, num_tokens: int) -> tuple[int, ...]:
    """What ends a sequence: the tokens that the file names, and those that end a turn."""
    named = (eos, _token_id(gguf, "eot", num_tokens), _token_id(gguf, "eom", num_tokens))
    ends = dict.fromkeys(token for token in named if token is not None)
    ends.update(dict.fromkeys(_ends_of_turn(gguf, added)))
    harmony = {token.text: token.id for token in added if token.text in ("<|return|>", "<|call|>", "<|end|>")}
    if len(harmony) == 3:  # GPT-OSS: a turn has several messages, each with an end of its own
        ends.pop(harmony.pop("<|end|>"), None)
        ends.update(dict.fromkeys(harmony.values()))
    return tuple(ends)


def _ends_of_turn(gguf: GGUF, added: Iterable[AddedToken]) -> list[int]:
    """Control tokens that end a turn, as far as the chat template writes them."""
    template = gguf.text("tokenizer.chat_template", "")
    return [token.id for token in added if token.special and token.text in END_OF_TURN and token.text in template]
