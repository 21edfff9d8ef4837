"""How long one request took, as its own response tells it."""

from __future__ import annotations

from chairlift.core.types import Finish


class Timings:
    """Gathered from the ends of its choices."""

    def __init__(self) -> None:
        self._finishes: list[Finish] = []

    def add(self, finish: Finish) -> None:
        """A choice came to a good end."""
        self._finishes.append(finish)

    def as_json(self) -> dict[str, float | None]:
        """Of the request as a whole, in the names that vLLM has; times begin with its arrival.

        Generation is from the first token of any choice to the last; between two tokens of one choice passes
        `mean_itl_ms`.
        """
        finishes = [one for one in self._finishes if one.first_token is not None and one.first_scheduled is not None]
        if not finishes:
            return {}
        first = min(one.first_token or 0.0 for one in finishes)
        generation_s = max(one.finished for one in finishes) - first
        gaps_s = sum(one.finished - (one.first_token or 0.0) for one in finishes)
        num_gaps = sum(one.num_output_tokens - 1 for one in finishes)
        num_tokens = sum(one.num_output_tokens for one in finishes)
        return {
            "time_to_first_token_ms": _ms(first - finishes[0].arrival),
            "generation_time_ms": _ms(generation_s),
            "queue_time_ms": _ms(min(one.first_scheduled or 0.0 for one in finishes) - finishes[0].arrival),
            "mean_itl_ms": _ms(gaps_s / num_gaps) if num_gaps else None,
            "tokens_per_second": round(num_tokens / generation_s, 3) if generation_s > 0 else None,
        }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
