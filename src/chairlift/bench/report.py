"""Figures of a run, as text and as JSON, with the names that users of `vllm bench serve` know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from chairlift.bench.exchange import Exchange
from chairlift.bench.load import Load
from chairlift.core.errors import InvalidOption
from chairlift.metrics.latency import Summary, in_ms, summarize

WIDTH = 50
TITLES = {
    "ttft": ("Time to First Token", "TTFT"),
    "tpot": ("Time per Output Token (excl. 1st token)", "TPOT"),
    "itl": ("Inter-token Latency", "ITL"),
    "e2el": ("End-to-end Latency", "E2EL"),
    "queue": ("Client Queue Time", "QT"),
}
"""Of each latency: its heading and its short name."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a report shall have: latencies by name, percentiles in %, and limits in ms that make an answer good."""

    metrics: tuple[str, ...] = ("ttft", "tpot", "itl", "e2el")
    percentiles: tuple[float, ...] = (99.0,)
    goodput_ms: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        for name in self.metrics:
            if name not in TITLES:
                raise InvalidOption(f"unknown latency {name!r}; there are {', '.join(TITLES)}")
        for name in self.goodput_ms or ():
            if name not in ("ttft", "tpot", "e2el"):
                raise InvalidOption(f"goodput limits ttft, tpot and e2el, not {name!r}")
        if any(not 0.0 <= percent <= 100.0 for percent in self.percentiles):
            raise InvalidOption("percentiles lie between 0 and 100")


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of one run. Failed requests count as failed and in nothing else. Latencies are in seconds by name."""

    load: Load
    answered: list[Exchange]
    wanted: Wanted
    latencies: dict[str, Summary]
    num_good: int | None
    peak_output_tokens_per_s: float | None
    """Most tokens delivered in one second of the run; an answer's tokens are spread evenly over its chunks."""
    peak_concurrency: int

    @property
    def num_input_tokens(self) -> int:
        return sum(exchange.num_input_tokens for exchange in self.answered)

    @property
    def num_output_tokens(self) -> int:
        return sum(exchange.num_output_tokens for exchange in self.answered)

    @property
    def num_chunks(self) -> int:
        return sum(len(exchange.deliveries) for exchange in self.load.exchanges)

    def per_s(self, count: float) -> float:
        return count / self.load.duration_s if self.load.duration_s > 0.0 else 0.0


def make_report(load: Load, wanted: Wanted) -> Report:
    """Figures of a run that is over."""
    answered = [exchange for exchange in load.exchanges if exchange.error is None]
    values: dict[str, list[float]] = {
        "ttft": [value for exchange in answered if (value := exchange.ttft_s) is not None],
        "tpot": [value for exchange in answered if (value := exchange.tpot_s) is not None],
        "itl": [gap for exchange in answered for gap in exchange.itls_s],
        "e2el": [exchange.e2el_s for exchange in answered],
        "queue": [exchange.queue_s for exchange in answered],
    }
    latencies = {name: summary for name in TITLES if (summary := summarize(values[name], wanted.percentiles))}
    good = None
    if wanted.goodput_ms is not None:
        good = sum(_is_good(exchange, wanted.goodput_ms) for exchange in answered)
    return Report(
        load=load,
        answered=answered,
        wanted=wanted,
        latencies=latencies,
        num_good=good,
        peak_output_tokens_per_s=_peak_rate(answered, load.begun),
        peak_concurrency=_peak_concurrency(load.exchanges),
    )


def _is_good(exchange: Exchange, limits_ms: Mapping[str, float]) -> bool:
    """Whether an answer kept every limit. One of a single token has no TPOT, and so keeps any."""
    seconds = {"ttft": exchange.ttft_s, "tpot": exchange.tpot_s or 0.0, "e2el": exchange.e2el_s}
    return all((value := seconds[name]) is not None and value * 1e3 <= limit for name, limit in limits_ms.items())


def _peak_rate(answered: Sequence[Exchange], begun: float) -> float | None:
    seconds: defaultdict[int, float] = defaultdict(float)
    for exchange in answered:
        for time in exchange.deliveries:
            seconds[int(time - begun)] += exchange.num_output_tokens / len(exchange.deliveries)
    return max(seconds.values(), default=None)


def _peak_concurrency(exchanges: Sequence[Exchange]) -> int:
    """Most exchanges under way at one moment; one that ends as another starts is not under way with it."""
    changes = [(exchange.start, 1) for exchange in exchanges] + [(exchange.finished, -1) for exchange in exchanges]
    return max(accumulate(change for _, change in sorted(changes)), default=0)


def to_json(report: Report, *, detailed: bool = False) -> dict[str, Any]:
    """The fields of `vllm bench serve --save-result`, latencies in ms; per-request lists are in seconds."""
    load = report.load
    result: dict[str, Any] = {
        "duration": load.duration_s,
        "completed": len(report.answered),
        "failed": load.num_failed,
        "total_input_tokens": report.num_input_tokens,
        "total_output_tokens": report.num_output_tokens,
        "request_throughput": report.per_s(len(report.answered)),
        "request_goodput": None if report.num_good is None else report.per_s(report.num_good),
        "output_throughput": report.per_s(report.num_output_tokens),
        "total_token_throughput": report.per_s(report.num_input_tokens + report.num_output_tokens),
        "max_output_tokens_per_s": report.peak_output_tokens_per_s,
        "max_concurrent_requests": report.peak_concurrency,
        "client_cpu_s": load.client_cpu_s,
        "num_chunks": report.num_chunks,
    }
    for name, summary in report.latencies.items():
        if name == "queue" or name in report.wanted.metrics:
            result |= in_ms(name, summary)
    if detailed:
        exchanges = load.exchanges
        result["input_lens"] = [exchange.num_input_tokens for exchange in exchanges]
        result["output_lens"] = [exchange.num_output_tokens for exchange in exchanges]
        result["ttfts"] = [exchange.ttft_s for exchange in exchanges]
        result["itls"] = [exchange.itls_s for exchange in exchanges]
        result["latencies"] = [exchange.e2el_s for exchange in exchanges]
        result["start_times"] = [exchange.start - load.begun for exchange in exchanges]
        result["queue_times"] = [exchange.queue_s for exchange in exchanges]
        result["generated_texts"] = [exchange.text for exchange in exchanges]
        result["errors"] = [exchange.error or "" for exchange in exchanges]
    return result


def to_text(report: Report, *, max_concurrency: int | None, request_rate: float | None) -> str:
    """The table that `vllm bench serve` prints, and what the client itself cost."""
    load = report.load
    rows: list[tuple[str, str]] = [("Successful requests:", str(len(report.answered)))]
    rows.append(("Failed requests:", str(load.num_failed)))
    if max_concurrency is not None:
        rows.append(("Maximum request concurrency:", str(max_concurrency)))
    if request_rate is not None:
        rows.append(("Request rate configured (RPS):", f"{request_rate:.2f}"))
    rows.append(("Benchmark duration (s):", f"{load.duration_s:.2f}"))
    rows.append(("Total input tokens:", str(report.num_input_tokens)))
    rows.append(("Total generated tokens:", str(report.num_output_tokens)))
    rows.append(("Request throughput (req/s):", f"{report.per_s(len(report.answered)):.2f}"))
    if report.num_good is not None:
        rows.append(("Request goodput (req/s):", f"{report.per_s(report.num_good):.2f}"))
    rows.append(("Output token throughput (tok/s):", f"{report.per_s(report.num_output_tokens):.2f}"))
    if report.peak_output_tokens_per_s is not None:
        rows.append(("Peak output token throughput (tok/s):", f"{report.peak_output_tokens_per_s:.2f}"))
    rows.append(("Peak concurrent requests:", f"{report.peak_concurrency:.2f}"))
    num_tokens = report.num_input_tokens + report.num_output_tokens
    rows.append(("Total token throughput (tok/s):", f"{report.per_s(num_tokens):.2f}"))
    lines = [f"{' Serving Benchmark Result ':=^{WIDTH}}", *map(_row, rows)]
    for name, (title, short) in TITLES.items():
        summary = report.latencies.get(name)
        held_back = name == "queue" and max_concurrency is not None and request_rate is not None
        if summary is None or not (name in report.wanted.metrics or held_back):
            continue
        lines.append(f"{title:-^{WIDTH}}")
        lines.append(_row((f"Mean {short} (ms):", f"{summary.mean * 1e3:.2f}")))
        lines.append(_row((f"Median {short} (ms):", f"{summary.median * 1e3:.2f}")))
        for percent, value in summary.percentiles.items():
            lines.append(_row((f"P{percent:g} {short} (ms):", f"{value * 1e3:.2f}")))
    lines.append(f"{'Client':-^{WIDTH}}")
    lines.append(_row(("Client CPU time (s):", f"{load.client_cpu_s:.2f}")))
    if report.num_chunks:
        lines.append(_row(("Client CPU time per chunk (us):", f"{load.client_cpu_s / report.num_chunks * 1e6:.1f}")))
    lines.append("=" * WIDTH)
    return "\n".join(lines)


def _row(row: tuple[str, str]) -> str:
    return f"{row[0]:<40} {row[1]:<10}".rstrip()
