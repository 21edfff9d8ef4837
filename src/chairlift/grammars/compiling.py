"""Compiling a grammar for a vocabulary, with the bounds that hold wherever it is done.

Imports little: the child in which strangers' grammars are tried first has it in its memory.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

MAX_STEP_FUEL = 50_000
"""Of the lexer for one mask, in the library's unit: about 4 ms."""
MAX_STEP_ITEMS = 20_000
"""Of the parser for one mask, in the library's unit: about 1 ms."""
MAX_LEXER_STATES = 20_000
"""Of one grammar, however long it is used; some 10 MB."""

NUM_WALKS = 4
WALK_TOKENS = 16
"""A grammar is tried on so many short texts: what its first tokens cannot bear is found before anybody waits for it."""

MAX_REASON_CHARS = 300


class InvalidGrammar(Exception):
    """What was given is no grammar, or one that is too much; the text is fit for a client."""


class Vocabulary(msgspec.Struct, frozen=True):
    """The bytes of every token, the tokens that are no text, and those that end an answer."""

    tokens: list[bytes]
    special_ids: list[int]
    end_ids: list[int]


class _Words:
    """A vocabulary in the shape that the library looks for."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], list[int]] | None) -> None:
        phantom = [] if vocabulary.end_ids else [b""]  # the library wants one that ends; nobody can sample this one
        self.tokens = [*vocabulary.tokens, *phantom]
        self.special_token_ids = vocabulary.special_ids
        self.eos_token_id = vocabulary.end_ids[0] if vocabulary.end_ids else len(vocabulary.tokens)
        self._encode = encode
        self.greedy: Callable[[str], list[int]] = lambda _: []

    def __call__(self, text: bytes) -> list[int]:
        """The tokens in which the model itself would spell a text that has to come, or else the longest there are."""
        if self._encode is not None:
            with contextlib.suppress(Exception):  # the library cannot pass on an error from here
                ids = self._encode(text.decode())
                if b"".join(map(self.tokens.__getitem__, ids)) == text:
                    return ids
        return self.greedy(text.decode("utf-8", "replace"))


def tokenizer_of(vocabulary: Vocabulary, encode: Callable[[str], list[int]] | None) -> LLTokenizer:
    """The library's view of a vocabulary; takes a third of a second for 50,000 tokens, and all of the interpreter.

    `encode` says how the model would spell a text that must come. It may be wrong, and is not needed to try a grammar.
    """
    words = _Words(vocabulary, encode)
    ends = vocabulary.end_ids or [words.eos_token_id]
    tokenizer = LLTokenizer(TokenizerWrapper(words), n_vocab=len(words.tokens), eos_token=ends)
    words.greedy = tokenizer.greedy_tokenize
    return tokenizer


def compiled(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """A grammar at its beginning, its first mask computed.

    Raises:
        InvalidGrammar: it is none, it is too large, or no text satisfies it.
    """
    limits = LLParserLimits(
        step_lexer_fuel=MAX_STEP_FUEL,
        step_max_items=MAX_STEP_ITEMS,
        max_lexer_states=MAX_LEXER_STATES,
        verbose_errors=False,
    )
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if not matcher.is_error() and not any(matcher.compute_bitmask()):
        raise InvalidGrammar("no text satisfies it")
    if matcher.is_error():
        raise InvalidGrammar(explained(matcher))
    return matcher


def walk(matcher: LLMatcher, seed: int) -> None:
    """Follow a grammar along a few texts that it allows.

    Raises:
        InvalidGrammar: it is too much for a step.
    """
    draw = random.Random(seed)
    for _ in range(NUM_WALKS):
        one = matcher.deep_copy()
        for _ in range(WALK_TOKENS):
            mask = int.from_bytes(one.compute_bitmask(), "little")
            if one.is_error() or not mask:
                break
            if one.is_stopped() or not one.consume_token(_drawn(mask, draw)):
                break
        if one.is_error() and is_too_much(one):
            raise InvalidGrammar(explained(one))


def is_too_much(matcher: LLMatcher) -> bool:
    """Whether a matcher failed for the work it takes, and not because no text goes on from here."""
    return not (matcher.stop_reason().startswith("NoExtension") or matcher.get_error().startswith("NoExtension"))


def explained(matcher: LLMatcher) -> str:
    """Why a matcher failed, in a line."""
    if not is_too_much(matcher):
        return "no text satisfies it"
    return " ".join(matcher.get_error().replace("<non-verbose/>", "").split())[:MAX_REASON_CHARS]


def _drawn(mask: int, draw: random.Random) -> int:
    """A set bit: the lowest at or above a random place, or the lowest of all."""
    above = mask >> (place := draw.randrange(mask.bit_length()))
    return place + (above & -above).bit_length() - 1
