"""Families of series as Prometheus knows them, whose series all have some labels in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

Series = Iterable[tuple[tuple[str, ...], float]]
"""Values of the labels that a family has besides the common ones, and the value of the series."""


def gauge(
    name: str, text: str, common: Mapping[str, str], series: Series, labels: tuple[str, ...] = ()
) -> GaugeMetricFamily:
    """What goes up and down."""
    family = GaugeMetricFamily(name, text, labels=(*common, *labels))
    for values, value in series:
        family.add_metric((*common.values(), *values), value)
    return family


def counter(
    name: str, text: str, common: Mapping[str, str], series: Series, labels: tuple[str, ...] = ()
) -> CounterMetricFamily:
    """What only grows; `name` is without the `_total` that Prometheus puts behind it."""
    family = CounterMetricFamily(name, text, labels=(*common, *labels))
    for values, value in series:
        family.add_metric((*common.values(), *values), value)
    return family


def by_label(values: Iterable[tuple[str, float]]) -> Series:
    """The series of a family with one label more, which has these values."""
    return [((str(label),), value) for label, value in values]
