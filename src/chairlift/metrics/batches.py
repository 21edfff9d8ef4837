"""What a server that keeps batches tells of them to Prometheus, beside the series of the engine that answers them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.metrics_core import Metric

from chairlift.metrics.families import by_label, counter, gauge

UNFINISHED = ("validating", "in_progress", "finalizing", "cancelling")
"""Statuses of batches that have not ended."""
ENDS = ("completed", "failed", "expired", "cancelled")
"""Ways in which batches end, and their requests: those that are given up with their batch count as cancelled."""


class BatchMetrics:
    """Counts of the batches of one server, since its start; no process globals.

    `unfinished` gives, for each batch that has not ended, its status and how many of its requests have no result.
    """

    def __init__(self, labels: Mapping[str, str], unfinished: Callable[[], Iterable[tuple[str, int]]]) -> None:
        self._labels = labels
        self._unfinished = unfinished
        self.num_running = 0
        """Requests that have their turn."""
        self.num_finished = dict.fromkeys(ENDS, 0)
        """Requests, by the way in which they ended."""
        self.num_batches_finished = dict.fromkeys(ENDS, 0)

    def collect(self) -> Iterator[Metric]:
        """All series, for one scrape."""
        num_open, num_batches = 0, dict.fromkeys(UNFINISHED, 0)
        for status, num_requests in self._unfinished():
            num_batches[status] += 1
            num_open += num_requests
        waiting = max(0, num_open - self.num_running)
        for name, text, value in (
            ("chairlift:num_batch_requests_waiting", "Requests of batches that wait for their turn.", waiting),
            ("chairlift:num_batch_requests_running", "Requests of batches that have their turn.", self.num_running),
        ):
            yield gauge(name, text, self._labels, [((), value)])
        text = "Batches that have not ended, by status."
        yield gauge("chairlift:num_batches", text, self._labels, by_label(num_batches.items()), ("status",))
        for name, text, counts in (
            ("chairlift:batch_requests_finished", "Requests of batches that ended, by how.", self.num_finished),
            ("chairlift:batches_finished", "Batches that ended, by how.", self.num_batches_finished),
        ):
            yield counter(name, text, self._labels, by_label(counts.items()), ("outcome",))
