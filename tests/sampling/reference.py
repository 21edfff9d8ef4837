"""A slow sampler that follows the definitions word by word, one row at a time, in Python floats."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from chairlift.core.types import Request

MASK = 2**64 - 1


def patched(logits: Sequence[float], request: Request, tokens: list[int]) -> list[float]:
    """The row after masks, bias, minimum length and penalties."""
    params = request.params
    row = list(logits)
    output = tokens[len(request.prompt) :]
    if params.allowed_token_ids is not None:
        row = [x if i in params.allowed_token_ids else -math.inf for i, x in enumerate(row)]
    for token, bias in params.logit_bias:
        row[token] += bias
    if len(output) < params.min_tokens:
        for token in (*request.eos_token_ids, *params.stop_token_ids):
            if token < len(row):
                row[token] = -math.inf
    if params.repetition_penalty != 1.0:
        for token in set(tokens):
            penalty = params.repetition_penalty
            row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
    for token in set(output):
        row[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    return row


def kept(row: list[float], request: Request, nudge: float = 0.0) -> dict[int, float]:
    """Weight by token of what min-p, top-k and top-p leave; `nudge` moves top-p's target by a factor 1 + nudge."""
    params = request.params
    peak = max(row)
    weight = {i: math.exp((x - peak) / params.temperature) for i, x in enumerate(row)}
    order = sorted(weight, key=lambda i: (-row[i], i))
    order = [i for i in order if weight[i] >= params.min_p]
    if params.top_k > 0:
        order = order[: params.top_k]
    if params.top_p < 1.0:
        target = params.top_p * sum(weight[i] for i in order) * (1.0 + nudge)
        mass, count = 0.0, 0
        while count < len(order) and mass < target:
            mass += weight[order[count]]
            count += 1
        order = order[: max(count, 1)]
    return {i: weight[i] for i in sorted(order)}


def acceptable(row: list[float], request: Request, uniform: float) -> set[int]:
    """The tokens that are right for a row, seeing that a float32 engine may round across a border."""
    if request.params.temperature < 1e-5:
        return {max(range(len(row)), key=lambda i: (row[i], -i))}
    right = set()
    for nudge in (-2e-6, 0.0, 2e-6):
        weights = kept(row, request, nudge)
        total = sum(weights.values())
        for shift in (-2e-6, 0.0, 2e-6):
            mark, mass = min(max(uniform + shift, 0.0), 1.0 - 1e-12) * total, 0.0
            for token, weight in weights.items():
                mass += weight
                if mass > mark:
                    right.add(token)
                    break
    return right


def seeded_uniform(seed: int, choice: int, position: int) -> float:
    """The number that a seeded row draws at a position of its output."""
    message = seed.to_bytes(9, "little", signed=True) + choice.to_bytes(8, "little")
    digest = hashlib.blake2b(message, digest_size=16, person=b"seeded").digest()
    low, high = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
    bits = _mix(_mix((position * 0x9E3779B97F4A7C15 + low) & MASK) ^ high)
    return (bits >> 11) / 2**53


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)
