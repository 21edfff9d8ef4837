"""What the client of a worker keeps for the engine of single passes, where it is beside one that generates."""

from __future__ import annotations

from collections.abc import Callable

from chairlift.core.admission import Admission
from chairlift.metrics.serving import ServingMetrics
from chairlift.wire import EncoderReady


class EncoderSide:
    """A queue and counters of its own: how long texts wait says nothing about how long answers take."""

    def __init__(self, admission: Admission, make_metrics: Callable[[EncoderReady], ServingMetrics]) -> None:
        self.admission = admission
        self.metrics: ServingMetrics | None = None
        self._make_metrics = make_metrics

    @property
    def is_open(self) -> bool:
        """Whether there is such an engine."""
        return self.metrics is not None

    def open(self, ready: EncoderReady) -> None:
        """The worker is ready: the first, or one that takes the place of another."""
        if self.metrics is None:
            self.metrics = self._make_metrics(ready)
        else:
            self.metrics.on_engine_back(0, ready.max_model_len)
        self.admission.open(ready.max_num_seqs)

    def close(self) -> None:
        """The worker is lost."""
        if self.metrics is not None:
            self.metrics.on_engine_dead()
