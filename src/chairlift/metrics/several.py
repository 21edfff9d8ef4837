"""The series of several engines as one text: a series has one heading, whoever it is about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric


class Counted(Protocol):
    """Something that can be scraped."""

    def collect(self) -> Iterable[Metric]: ...


class _Merged:
    def __init__(self, sources: Sequence[Counted]) -> None:
        self._sources = sources

    def describe(self) -> Iterable[Metric]:
        """No names up front: a registry lives for one scrape, so that nothing can be registered twice."""
        return ()

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for source in self._sources:
            for family in source.collect():
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples.extend(family.samples)
        yield from families.values()


def render_all(sources: Sequence[Counted], *, with_process: bool = False) -> bytes:
    """Everything in the Prometheus text format; with the memory, time and descriptors of this process if wanted."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged(sources))
    if with_process:
        ProcessCollector(registry=registry)
    return generate_latest(registry)
