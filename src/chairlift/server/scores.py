"""Log-probabilities that are kept until they are sent, in few bytes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

from chairlift.core.types import TokenLogprob


class Scores:
    """Log-probabilities of tokens in their order: 12 bytes for each alternative, 20 for each token besides.

    As objects they would take 120 bytes each, and a body of a hundred bytes may ask for hundreds of thousands.
    """

    __slots__ = ("_ends", "_logprobs", "_ranks", "_tokens", "_top_logprobs", "_top_tokens")

    def __init__(self) -> None:
        self._tokens = array("i")
        self._logprobs = array("d")
        self._ranks = array("i")
        self._ends = array("I")
        """Where the alternatives of each token end."""
        self._top_tokens = array("i")
        self._top_logprobs = array("d")

    def __len__(self) -> int:
        return len(self._tokens)

    def __iter__(self) -> Iterator[TokenLogprob]:
        start = 0
        rows = zip(self._tokens, self._logprobs, self._ranks, self._ends, strict=True)
        for token, logprob, rank, end in rows:
            tops = zip(self._top_tokens[start:end], self._top_logprobs[start:end], strict=True)
            yield TokenLogprob(token, logprob, rank, tuple(tops))
            start = end

    def append(self, score: TokenLogprob) -> None:
        """Keep one more."""
        self._tokens.append(score.token)
        self._logprobs.append(score.logprob)
        self._ranks.append(score.rank)
        for token, logprob in score.top:
            self._top_tokens.append(token)
            self._top_logprobs.append(logprob)
        self._ends.append(len(self._top_tokens))

    def extend(self, scores: Iterable[TokenLogprob]) -> None:
        """Keep more."""
        for score in scores:
            self.append(score)

    @property
    def mean(self) -> float:
        """Of the log-probabilities of the tokens themselves; 0 without any."""
        return sum(self._logprobs) / max(1, len(self._logprobs))
