"""Randomness as a function: (stream, position) -> a number, with no state in between.

A row's draw must not depend on its neighbours, its slot, the step or the batch size, and a sequence that was
preempted must go on as if nothing had happened. A generator that is advanced cannot promise that; a hash of the
place in the output can.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_30, _SHIFT_27, _SHIFT_31, _SHIFT_11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


def seeded_stream(seed: int, choice: int) -> tuple[int, int]:
    """The 128-bit key of choice `choice` of a request with a seed, as two 64-bit halves.

    Hashing keeps near seeds and near choices apart: seed 1 choice 0 and seed 0 choice 1 share nothing.
    """
    return _halves(b"seeded", seed.to_bytes(9, "little", signed=True), choice, b"")


def unseeded_stream(entropy: bytes, request_id: int, choice: int) -> tuple[int, int]:
    """The 128-bit key of one answer of a request without a seed: fresh per sampler, the same at every join."""
    return _halves(b"unseeded", request_id.to_bytes(16, "little", signed=True), choice, entropy)


def _halves(kind: bytes, name: bytes, choice: int, entropy: bytes) -> tuple[int, int]:
    message = name + choice.to_bytes(8, "little")
    digest = hashlib.blake2b(message, digest_size=16, key=entropy, person=kind).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def uniforms(low: NDArray[np.uint64], high: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number in [0, 1) per row, in steps of 2**-53.

    The position is the counter; the two halves of the key enter at different depths, so that two streams are never
    the same sequence shifted.

    Shapes:
        low, high  [rows]  halves of each row's key
        positions  [rows]  tokens generated before this one
        returns    [rows]

    Source: the finaliser is that of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
    generators"); the keying is ours.
    """
    counter = positions.astype(np.uint64) * _GOLDEN
    bits = _mix(_mix(counter + low) ^ high)
    return (bits >> _SHIFT_11).astype(np.float64) * 2.0**-53


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> _SHIFT_30)) * _MIX_1
    z = (z ^ (z >> _SHIFT_27)) * _MIX_2
    return z ^ (z >> _SHIFT_31)
