"""From logits to tokens, for a whole batch at once: exact, and every row on its own."""

from chairlift.sampling.logprobs import score
from chairlift.sampling.masks import Constraint, ConstraintFactory
from chairlift.sampling.sampler import Sampled, Sampler

__all__ = ["Constraint", "ConstraintFactory", "Sampled", "Sampler", "score"]
