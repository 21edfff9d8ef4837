"""Loads in virtual time: every start, wait and end is known exactly."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.bench.datasets import Sample
from chairlift.bench.exchange import Exchange
from chairlift.bench.load import Load, run_load
from chairlift.bench.report import Wanted, make_report, to_json, to_text
from virtual_time import now, run_virtually


class Server:
    """Answers the sample named i with `tokens[i]` tokens, the first after `prefill_s`, the others `itl_s` apart."""

    def __init__(self, tokens: Sequence[int], prefill_s: float = 1.0, itl_s: float = 0.5) -> None:
        self.tokens = tokens
        self.prefill_s = prefill_s
        self.itl_s = itl_s
        self.in_flight = self.most_in_flight = 0

    async def ask(self, sample: Sample) -> Exchange:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        exchange = Exchange(start=now(), num_input_tokens=10)
        count = self.tokens[int(str(sample.prompt))]
        for i in range(count):
            await asyncio.sleep(self.itl_s if i else self.prefill_s)
            exchange.deliveries.append(now())
        if count == 0:
            await asyncio.sleep(self.prefill_s)
            exchange.error = "refused"
        exchange.num_output_tokens = count
        exchange.finished = now()
        self.in_flight -= 1
        return exchange


def loaded(server: Server, arrivals: Sequence[float], max_concurrency: int | None = None) -> Load:
    async def main() -> Load:
        samples = [Sample(str(i), 1, 1) for i in range(len(arrivals))]
        return await run_load(samples, arrivals, server.ask, max_concurrency=max_concurrency, clock=now)

    return run_virtually(main())


def test_open_loop_starts_everything_when_it_is_due() -> None:
    load = loaded(Server([3, 1, 2]), [0.0, 0.25, 7.0])
    assert [exchange.start for exchange in load.exchanges] == [0.0, 0.25, 7.0]
    assert [exchange.finished for exchange in load.exchanges] == [2.0, 1.25, 8.5]
    assert [exchange.queue_s for exchange in load.exchanges] == [0.0, 0.0, 0.0]
    assert load.duration_s == 8.5


def test_closed_loop_starts_the_next_when_one_ends() -> None:
    server = Server([1, 3, 1, 1])
    load = loaded(server, [0.0] * 4, max_concurrency=2)
    assert [exchange.start for exchange in load.exchanges] == [0.0, 0.0, 1.0, 2.0]
    assert [exchange.queue_s for exchange in load.exchanges] == [0.0, 0.0, 1.0, 2.0]
    assert server.most_in_flight == 2
    assert load.duration_s == 3.0


def test_a_limit_holds_back_an_open_loop_and_says_for_how_long() -> None:
    load = loaded(Server([1, 1, 1]), [0.0, 0.5, 4.0], max_concurrency=1)
    assert [exchange.start for exchange in load.exchanges] == [0.0, 1.0, 4.0]
    assert [exchange.queue_s for exchange in load.exchanges] == [0.0, 0.5, 0.0]


@given(
    st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(0, 4)), min_size=1, max_size=20),
    st.none() | st.integers(1, 5),
)
def test_every_sample_is_asked_once_and_never_early(plan: list[tuple[float, int]], limit: int | None) -> None:
    arrivals = sorted(arrival for arrival, _ in plan)
    server = Server([tokens for _, tokens in plan])
    load = loaded(server, arrivals, limit)
    assert load.num_started == load.num_done == len(plan) == len(load.exchanges)
    assert load.num_failed == sum(tokens == 0 for _, tokens in plan)
    for arrival, exchange in zip(arrivals, load.exchanges, strict=True):
        assert exchange.start >= arrival
        assert exchange.start - exchange.queue_s == pytest.approx(arrival)
    assert limit is None or server.most_in_flight <= limit
    assert make_report(load, Wanted()).peak_concurrency <= server.most_in_flight


def test_report_of_a_known_schedule() -> None:
    """Two answers of three tokens (1.0, 1.5, 2.0) and one refusal, over five seconds."""
    load = loaded(Server([3, 3, 0]), [0.0, 3.0, 3.5])
    load.client_cpu_s = 0.003
    wanted = Wanted(percentiles=(50.0, 99.9), goodput_ms={"ttft": 1000.0, "e2el": 1999.0})
    result = to_json(make_report(load, wanted), detailed=True)
    assert result["duration"] == 5.0
    assert (result["completed"], result["failed"]) == (2, 1)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (20, 6)
    assert result["request_throughput"] == pytest.approx(0.4)
    assert result["output_throughput"] == pytest.approx(1.2)
    assert result["total_token_throughput"] == pytest.approx(5.2)
    assert result["max_output_tokens_per_s"] == 2.0
    assert result["max_concurrent_requests"] == 2
    assert result["request_goodput"] == 0.0
    for name, value in {"ttft": 1000.0, "tpot": 500.0, "itl": 500.0, "e2el": 2000.0}.items():
        for kind in ("mean", "median", "p50", "p99.9"):
            assert result[f"{kind}_{name}_ms"] == pytest.approx(value)
        assert result[f"std_{name}_ms"] == pytest.approx(0.0)
    assert result["ttfts"] == [1.0, 1.0, None]
    assert result["itls"] == [[0.5, 0.5], [0.5, 0.5], []]
    assert result["latencies"] == [2.0, 2.0, 1.0]
    assert result["start_times"] == [0.0, 3.0, 3.5]
    assert result["input_lens"] == [10, 10, 10]
    assert result["output_lens"] == [3, 3, 0]
    assert result["errors"] == ["", "", "refused"]


@pytest.mark.parametrize(
    ("limits", "good"),
    [({"ttft": 1000.0}, 3), ({"ttft": 999.0}, 0), ({"tpot": 499.0}, 1), ({"e2el": 1500.0, "ttft": 1000.0}, 2)],
)
def test_goodput_counts_what_keeps_every_limit(limits: dict[str, float], good: int) -> None:
    """Of one token, two tokens, three tokens: the first has no time per output token to be bad."""
    report = make_report(loaded(Server([1, 2, 3]), [0.0, 0.0, 0.0]), Wanted(goodput_ms=limits))
    assert report.num_good == good


def test_text_has_the_rows_that_people_grep_for() -> None:
    load = loaded(Server([3, 3, 0]), [0.0, 3.0, 3.5])
    load.client_cpu_s = 0.003
    report = make_report(load, Wanted(percentiles=(99.0,), goodput_ms={"ttft": 5000.0}))
    lines = to_text(report, max_concurrency=7, request_rate=2.0).split("\n")
    assert lines[0] == "============ Serving Benchmark Result ============"
    rows = dict(line.rsplit(None, 1) for line in lines if ":" in line)
    assert rows == {
        "Successful requests:": "2",
        "Failed requests:": "1",
        "Maximum request concurrency:": "7",
        "Request rate configured (RPS):": "2.00",
        "Benchmark duration (s):": "5.00",
        "Total input tokens:": "20",
        "Total generated tokens:": "6",
        "Request throughput (req/s):": "0.40",
        "Request goodput (req/s):": "0.40",
        "Output token throughput (tok/s):": "1.20",
        "Peak output token throughput (tok/s):": "2.00",
        "Peak concurrent requests:": "2.00",
        "Total token throughput (tok/s):": "5.20",
        **{f"{kind} TTFT (ms):": "1000.00" for kind in ("Mean", "Median", "P99")},
        **{f"{kind} TPOT (ms):": "500.00" for kind in ("Mean", "Median", "P99")},
        **{f"{kind} ITL (ms):": "500.00" for kind in ("Mean", "Median", "P99")},
        **{f"{kind} E2EL (ms):": "2000.00" for kind in ("Mean", "Median", "P99")},
        **{f"{kind} QT (ms):": "0.00" for kind in ("Mean", "Median", "P99")},
        "Client CPU time (s):": "0.00",
        "Client CPU time per chunk (us):": "500.0",
    }


def test_peak_rate_counts_tokens_in_seconds_of_the_run() -> None:
    """Six tokens in two chunks, on both sides of the border between the first second and the second."""
    exchange = Exchange(10.5, [11.25, 11.75], 12.0, num_output_tokens=6)
    load = Load(num_requests=1, begun=10.5, duration_s=1.5, exchanges=[exchange])
    assert make_report(load, Wanted()).peak_output_tokens_per_s == 3.0


def test_a_run_in_which_everything_failed_has_a_report() -> None:
    report = make_report(loaded(Server([0, 0]), [0.0, 0.0]), Wanted(goodput_ms={"ttft": 1.0}))
    assert to_json(report)["completed"] == 0 and to_json(report)["failed"] == 2
    assert "Mean" not in to_text(report, max_concurrency=None, request_rate=None)
