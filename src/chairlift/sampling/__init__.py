"""From logits to tokens, for a whole batch at once: exact, and every row on its own."""

from chairlift.sampling.logprobs import score
from chairlift.sampling.sampler import Sampled, Sampler

__all__ = ["Sampled", "Sampler", "score"]
