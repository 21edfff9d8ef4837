"""A vocabulary that one can see through: every byte, some pairs, three tokens that are no text."""

from __future__ import annotations

import numpy as np

from chairlift.core.structured import StructuredOutputs
from chairlift.core.types import Request, SamplingParams
from chairlift.grammars.child import Verdict
from chairlift.grammars.compiling import Vocabulary, tokenizer_of
from chairlift.grammars.matcher import Matcher

END, OTHER_END, TURN = 256, 257, 258
PIECES = ["true", "false", "null", '{"', '": ', "ab", "abc", "bc", "re", "red", "  ", "é"]
TOKENS = [bytes([byte]) for byte in range(256)] + [b"<end>", b"<done>", b"<turn>"] + [p.encode() for p in PIECES]
VOCABULARY = Vocabulary(TOKENS, [END, OTHER_END, TURN], [END, OTHER_END])
TOKENIZER = tokenizer_of(VOCABULARY, None)
NUM_WORDS = -(-(len(TOKENS) + 1) // 32)


def legal(matcher: Matcher) -> set[int]:
    """The tokens that may come next; none if there is an error."""
    words = np.zeros(NUM_WORDS, np.uint32)
    if matcher.fill(words) is not None:
        assert not words.any()
        return set()
    return {token for token in range(len(TOKENS)) if words[token >> 5] >> (token & 31) & 1}


def text_of(tokens: list[int]) -> bytes:
    """What tokens say; those that are no text say nothing."""
    return b"".join(TOKENS[token] for token in tokens if token not in (END, OTHER_END, TURN))


def asking(request_id: int, form: StructuredOutputs, *, n: int = 1, principal: str = "") -> Request:
    """A request for an answer of this form."""
    return Request(request_id, [1], SamplingParams(structured_outputs=form), n=n, principal=principal)


class PlainChecker:
    """Says what a child would say of grammars that are no trouble, without one."""

    def __init__(self, _: Vocabulary) -> None:
        self.asked: list[str] = []
        self.closed = False

    def check(self, grammar: str) -> Verdict:
        self.asked.append(grammar)
        return Verdict(None, 1 << 20)

    def close(self) -> None:
        self.closed = True
