"""Rotary position embeddings: how far each pair of a head turns per position, and how contexts are stretched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Scaling = Literal["none", "linear", "dynamic", "yarn", "llama3", "longrope", "factors"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of the first `dim` numbers of each head: pair j at position p turns by `p * inv_freq()[j]`.

    `scaling` stretches the frequencies:

    - `linear` divides all by `factor`;
    - `dynamic` raises `theta` so far that the served context, if it is longer than the original, is met;
    - `yarn` divides the slow ones by `factor`, keeps the fast ones, and blends between, linearly in j;
    - `llama3` does so linearly in the number of turns;
    - `longrope` divides pair j by `factors[j]`, or by `long_factors[j]` where the served context is longer than the
      original: keys stay in the cache as they were turned, so it cannot change while a sequence grows;
    - `factors` divides pair j by `factors[j]` (what a GGUF file records for llama3).

    Cosines and sines are multiplied by `amplitude`, hence scores by its square.

    Source: Su et al. 2021, arXiv:2104.09864; linear, Chen et al. 2023, arXiv:2306.15595; yarn, Peng et al. 2023,
    arXiv:2309.00071; longrope, Ding et al. 2024, arXiv:2402.13753; llama3, the Llama 3.1 release.
    """

    dim: int
    theta: float
    scaling: Scaling = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_model_len: int = 8192
    factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    amplitude: float = 1.0

    def inv_freq(self, max_model_len: int = 1) -> tuple[float, ...]:
        """Radians per position of each rotated pair, `[dim / 2]`, meant to be rounded to float32 once.

        `max_model_len` is the context that is served, in tokens.
        """
        plain = [self.theta ** (-2 * j / self.dim) for j in range(self.dim // 2)]
        match self.scaling:
            case "none":
                return tuple(plain)
            case "linear":
                return tuple(freq / self.factor for freq in plain)
            case "dynamic":
                return self._dynamic(max_model_len)
            case "yarn":
                return self._yarn(plain)
            case "llama3":
                return tuple(self._llama3(freq) for freq in plain)
            case "longrope" if max_model_len > self.original_max_model_len:
                return tuple(freq / factor for freq, factor in zip(plain, self.long_factors, strict=True))
            case "longrope" | "factors":
                return tuple(freq / factor for freq, factor in zip(plain, self.factors, strict=True))

    def _dynamic(self, max_model_len: int) -> tuple[float, ...]:
        stretch = max(max_model_len / self.original_max_model_len, 1.0)
        theta = self.theta * (self.factor * stretch - (self.factor - 1)) ** (self.dim / (self.dim - 2))
        return tuple(theta ** (-2 * j / self.dim) for j in range(self.dim // 2))

    def _llama3(self, freq: float) -> float:
        """Pairs that turn often within the original context keep their frequency, slow ones are stretched."""
        turns = self.original_max_model_len * freq / (2 * math.pi)
        keep = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        keep = min(max(keep, 0.0), 1.0)
        return freq * keep + freq / self.factor * (1.0 - keep)

    def _yarn(self, plain: list[float]) -> tuple[float, ...]:
        low, high = self._pair_that_turns(self.beta_fast), self._pair_that_turns(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dim - 1)
        width = high - low or 0.001
        stretched = [min(max((j - low) / width, 0.0), 1.0) for j in range(len(plain))]
        return tuple(freq / self.factor * s + freq * (1.0 - s) for freq, s in zip(plain, stretched, strict=True))

    def _pair_that_turns(self, times: float) -> float:
        """The (fractional) pair that turns so many times within the original context."""
        wavelength = self.original_max_model_len / times
        return self.dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(self.theta))


def yarn_amplitude(factor: float, mscale: float = 0.0, mscale_all_dim: float = 0.0) -> float:
    """What yarn multiplies cosines and sines by where a model does not say."""

    def grown(weight: float) -> float:
        return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0

    return grown(mscale) / grown(mscale_all_dim) if mscale and mscale_all_dim else grown(1.0)


def longrope_amplitude(factor: float, original_max_model_len: int) -> float:
    """The same for longrope."""
    return 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(original_max_model_len))
