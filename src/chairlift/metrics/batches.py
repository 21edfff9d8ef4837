"""What a server that keeps batches tells of them to Prometheus, beside the series of the engine that answers them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

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
        names, values = tuple(self._labels), tuple(self._labels.values())
        for name, text, value in (
            (
                "chairlift:num_batch_requests_waiting",
                "Requests of batches that wait for their turn.",
                max(0, num_open - self.num_running),
            ),
            ("chairlift:num_batch_requests_running", "Requests of batches that have their turn.", self.num_running),
        ):
            gauge = GaugeMetricFamily(name, text, labels=names)
            gauge.add_metric(values, value)
            yield gauge
        batches = GaugeMetricFamily(
            "chairlift:num_batches", "Batches that have not ended, by status.", labels=(*names, "status")
        )
        for status, count in num_batches.items():
            batches.add_metric((*values, status), count)
        yield batches
        for name, text, counts in (
            ("chairlift:batch_requests_finished", "Requests of batches that ended, by how.", self.num_finished),
            ("chairlift:batches_finished", "Batches that ended, by how.", self.num_batches_finished),
        ):
            family = CounterMetricFamily(name, text, labels=(*names, "outcome"))
            for outcome, count in counts.items():
                family.add_metric((*values, outcome), count)
            yield family
