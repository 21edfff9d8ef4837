"""Rotary position embeddings: how far each pair of a head turns per position, and how contexts are stretched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding of `dim` numbers per head: angle of pair j at position p is `p * inv_freq()[j]`.

    `scaling` stretches the frequencies: `linear` divides all by `factor`; `llama3` divides the slow ones by `factor`,
    keeps the fast ones and blends between; `factors` divides pair j by `factors[j]` (what a GGUF file records
    for llama3).

    Source: Su et al. 2021, arXiv:2104.09864; linear, Chen et al. 2023, arXiv:2306.15595; llama3, the Llama 3.1 release.
    """

    dim: int
    theta: float
    scaling: Literal["none", "linear", "llama3", "factors"] = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_model_len: int = 8192
    factors: tuple[float, ...] = ()

    def inv_freq(self) -> tuple[float, ...]:
        """Radians per position of each rotated pair, `[dim / 2]`, meant to be rounded to float32 once."""
        plain = [self.theta ** (-2 * j / self.dim) for j in range(self.dim // 2)]
        match self.scaling:
            case "none":
                return tuple(plain)
            case "linear":
                return tuple(freq / self.factor for freq in plain)
            case "factors":
                return tuple(freq / factor for freq, factor in zip(plain, self.factors, strict=True))
            case "llama3":
                return tuple(self._llama3(freq) for freq in plain)

    def _llama3(self, freq: float) -> float:
        """Pairs that turn often within the original context keep their frequency, slow ones are stretched."""
        turns = self.original_max_model_len * freq / (2 * math.pi)
        keep = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        keep = min(max(keep, 0.0), 1.0)
        return freq * keep + freq / self.factor * (1.0 - keep)
