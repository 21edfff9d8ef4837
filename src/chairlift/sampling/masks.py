"""Which tokens each row may say next, for rows that have a grammar."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from chairlift.core.types import Request

_PENALTIES = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"),
    np.float32(0),
    np.float32(-np.inf),
)
"""What to add to eight logits, by the byte of their bits. A copy where bits are set takes twenty times as long: whether
the next one is set cannot be foretold."""


class Constraint(Protocol):
    """The grammar of one answer, at the place that the answer has come to."""

    def accept(self, token: int) -> None:
        """The answer goes on with this token, which was allowed."""
        ...

    def fill(self, words: NDArray[np.uint32]) -> str | None:
        """Set the bits of the tokens that may come next, those of 32 tokens to a word; why there are none, else None.

        Shapes:
            words  [at least the vocabulary / 32]
        """
        ...


ConstraintFactory = Callable[[Request, list[int]], Constraint]
"""Gives the constraint of an answer that has so much output already."""


class Masks:
    """A bit per token for every row that has a constraint; rows without one cost nothing.

    A token is taken note of when the next mask is wanted, so that both can be done while the device computes.
    """

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._penalties = np.empty((-(-vocab_size // 8), 8), np.float32)
        self._words = np.zeros((num_slots, -(-(vocab_size + 1) // 32)), np.uint32)
        self._constraints: dict[int, Constraint] = {}
        self._said: dict[int, int] = {}
        """Tokens that the constraints do not know of yet, by slot."""
        self._errors: dict[int, str] = {}
        self._fresh: set[int] = set()
        """Slots whose bits are those of the next token."""
        self.rows = np.zeros(num_slots, np.bool_)
        """Which slots have a constraint."""

    @property
    def has_rows(self) -> bool:
        """Whether any slot has a constraint."""
        return bool(self._constraints)

    def join(self, slot: int, constraint: Constraint) -> None:
        self.leave(slot)
        self._constraints[slot] = constraint
        self.rows[slot] = True

    def leave(self, slot: int) -> None:
        """Slots without a constraint as well."""
        if self._constraints.pop(slot, None) is not None:
            self._said.pop(slot, None)
            self._errors.pop(slot, None)
            self._fresh.discard(slot)
            self.rows[slot] = False

    def prepare(self, slots: Iterable[int]) -> None:
        """Make the masks of those slots that have a constraint."""
        for slot in slots:
            constraint = self._constraints.get(slot)
            if constraint is None or slot in self._fresh:
                continue
            said = self._said.pop(slot, None)
            if said is not None:
                constraint.accept(said)
            error = constraint.fill(self._words[slot])
            if error is not None:
                self._errors[slot] = error
            self._fresh.add(slot)

    def allow(self, slots: NDArray[np.integer], tokens: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Whether each slot may say a token; both are parallel, and slots without a constraint have any answer."""
        bits = self._words[slots, tokens >> 5] >> (tokens & 31).astype(np.uint32)
        allowed: NDArray[np.bool_] = (bits & np.uint32(1)).astype(np.bool_)
        return allowed

    def error(self, slot: int) -> str | None:
        """Why a slot may say nothing at all."""
        return self._errors.get(slot)

    def copy_allowed(self, slot: int, logits: NDArray[np.float32], row: NDArray[np.float32]) -> None:
        """Make `row` the logits of what a slot may say, and -inf elsewhere.

        Shapes:
            logits, row  [vocab]
        """
        octets = self._words[slot].view(np.uint8)[: len(self._penalties)]
        np.take(_PENALTIES, octets, axis=0, out=self._penalties, mode="clip")
        np.add(logits, self._penalties.reshape(-1)[: self._vocab_size], out=row)

    def push(self, slot: int, token: int) -> None:
        """A slot with a constraint said a token."""
        self._said[slot] = token
        self._fresh.discard(slot)
