"""Two small programs that explain continuous batching, done again by the real scheduler: figures must be equal.

`lesson` runs one engine of 64 slots three ways on the same 3,000 requests; `slots` shows who sits in which of 4 slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import get_args

from chairlift.core.policy import BatchingName, Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, Limits, StepOutput, StepPlan
from chairlift.metrics.latency import e2e, ttft
from chairlift.sim.cost.seed import LESSON
from chairlift.sim.replica import Replica
from chairlift.sim.result import Result
from chairlift.sim.router import RoundRobin
from chairlift.sim.run import simulate
from chairlift.sim.workload import VOCAB_SIZE, Asked, Part, blocks


@dataclass(frozen=True, slots=True)
class LessonTraffic:
    """Poisson arrivals and log-normal answers, clipped, all drawn from one random stream; prompts of one length.

    With `output_tokens` all answers have that length, and nothing is drawn for them.
    """

    num_requests: int = 3000
    prompt_tokens: int = 1000
    output_log_mean: float = 4.5
    output_log_sigma: float = 1.0
    output_max: int = 2000
    output_tokens: int | None = None
    seed: int = 7

    def asked(self, rate: float) -> Iterator[Asked]:
        """The requests at `rate` of them a second."""
        prompt = blocks(Part(1, 1, self.prompt_tokens))
        for arrival, length in self.drawn(rate):
            yield Asked(arrival=arrival, prompt=prompt, num_output=length)

    def drawn(self, rate: float) -> Iterator[tuple[float, int]]:
        """Arrival in seconds and tokens of the answer of each request."""
        random, now = Random(self.seed), 0.0
        for _ in range(self.num_requests):
            now += random.expovariate(rate)
            yield now, self._length(random)

    def _length(self, random: Random) -> int:
        if self.output_tokens is not None:
            return self.output_tokens
        length = int(math.exp(random.gauss(self.output_log_mean, self.output_log_sigma)))
        return min(max(length, 1), self.output_max)


@dataclass(frozen=True, slots=True)
class LessonRow:
    """One line of the table. Times are in seconds; shares are parts of 1."""

    rate: float
    batching: str
    tokens_per_s: float
    slot_use: float
    ttft_p50_s: float
    ttft_p99_s: float
    e2e_p50_s: float
    e2e_p99_s: float


@dataclass(frozen=True, slots=True)
class Lesson:
    """The comparison: one traffic at several rates, under several batchings, in `max_num_seqs` slots.

    `max_concurrent` bounds how many run under continuous batching, in the same number of slots.
    """

    traffic: LessonTraffic = LessonTraffic()
    rates: tuple[float, ...] = (8.0, 40.0)
    batchings: tuple[BatchingName, ...] = get_args(BatchingName)
    max_num_seqs: int = 64
    max_concurrent: int | None = None
    dynamic_wait_s: float = 0.05

    def run(self, rate: float, batching: BatchingName) -> LessonRow:
        """One line."""
        num_running = self.max_num_seqs
        if batching == "continuous" and self.max_concurrent is not None:
            num_running = min(num_running, self.max_concurrent)
        most = self.traffic.prompt_tokens + max(self.traffic.output_max, self.traffic.output_tokens or 1)
        policy = Policy(
            batching=batching,
            max_batch_wait_s=self.dynamic_wait_s if batching == "dynamic" else None,
            priority_ageing_s=0.0,  # all are equals
        )
        replica = Replica(
            batching,
            Scheduler(
                Limits(num_running, num_running * (self.traffic.prompt_tokens + 1), most),
                # A cache that never runs out: a block for each that runs, as long as any of them may get.
                CacheShape(2 * (num_running + 1), most),
                vocab_size=VOCAB_SIZE,
                enable_prefix_caching=False,
                policy=policy,
            ),
            LESSON,
        )
        return self._row(rate, batching, simulate(self.traffic.asked(rate), [replica], RoundRobin()))

    def rows(self) -> Iterator[LessonRow]:
        """All lines, rate by rate."""
        for rate in self.rates:
            for batching in self.batchings:
                yield self.run(rate, batching)

    def _row(self, rate: float, batching: str, result: Result) -> LessonRow:
        tally = result.replicas[0].tally
        arrivals = [served.asked.arrival for served in result.served]
        firsts = [served.first_token or math.nan for served in result.served]
        ends = [served.finished or math.nan for served in result.served]
        ttfts = [ttft(arrival, first) for arrival, first in zip(arrivals, firsts, strict=True)]
        e2es = [e2e(arrival, end) for arrival, end in zip(arrivals, ends, strict=True)]
        return LessonRow(
            rate=rate,
            batching=batching,
            tokens_per_s=result.num_output_tokens / max(ends),
            slot_use=tally.num_rows / (tally.num_steps * self.max_num_seqs),
            ttft_p50_s=_at(ttfts, 0.5),
            ttft_p99_s=_at(ttfts, 0.99),
            e2e_p50_s=_at(e2es, 0.5),
            e2e_p99_s=_at(e2es, 0.99),
        )

    def heading(self) -> str:
        lengths = sorted(length for _, length in self.traffic.drawn(1.0))
        mean = sum(lengths) / len(lengths)
        return (
            f"{self.traffic.num_requests} requests, prompt {self.traffic.prompt_tokens}, output median "
            f"{lengths[len(lengths) // 2]}, mean {mean:.0f}, max {lengths[-1]}; batch slots {self.max_num_seqs}"
        )

    def rate_heading(self, rate: float) -> str:
        lengths = [length for _, length in self.traffic.drawn(1.0)]
        return f"arrivals {rate:.0f}/s (demand {rate * sum(lengths) / len(lengths):.0f} tok/s)"


COLUMNS = f"{'policy':<11}{'tok/s':>8}{'slot use':>10}{'TTFT p50':>10}{'TTFT p99':>10}{'e2e p50':>9}{'e2e p99':>9}"


def lesson_line(row: LessonRow) -> str:
    """A line of the table."""
    return (
        f"{row.batching:<11}{row.tokens_per_s:>8.0f}{100 * row.slot_use:>9.0f}%{row.ttft_p50_s:>9.2f}s"
        f"{row.ttft_p99_s:>9.2f}s{row.e2e_p50_s:>8.1f}s{row.e2e_p99_s:>8.1f}s"
    )


def _at(values: list[float], share: float) -> float:
    """The value at the place `share` of the way, not between two of them: what the lesson calls a percentile."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


# ---------------------------------------------------------------- slots


@dataclass(frozen=True, slots=True)
class SlotsTraffic:
    """A request a second, each with an answer of 5 tokens, at a second for each step."""

    num_requests: int = 8
    num_output: int = 5
    max_num_seqs: int = 4


def slot_lines(traffic: SlotsTraffic = SlotsTraffic()) -> list[str]:
    """One line for each step: when it ended, and which request is in which slot after it.

    The program that these lines are of counts its slots from the other end.
    """
    seated: dict[int, int] = {}
    places: dict[int, int] = {}
    lines: list[str] = []

    def note(plan: StepPlan, output: StepOutput, begun: float, ended: float) -> None:
        for join in plan.joins:
            places[join.request.id] = traffic.max_num_seqs - 1 - join.slot
            seated[places[join.request.id]] = join.request.id
        for finish in output.finishes:
            del seated[places[finish.id]]
        lines.append(f"{ended:.0f} {seated}")

    replica = Replica(
        "slots",
        Scheduler(
            Limits(traffic.max_num_seqs, 64, 64),
            CacheShape(64, 16),
            vocab_size=VOCAB_SIZE,
            enable_prefix_caching=False,
        ),
        lambda plan: 1.0,
        on_step=note,
    )
    asked = [
        Asked(arrival=float(i), prompt=blocks(Part(1, 1, 1)), num_output=traffic.num_output)
        for i in range(traffic.num_requests)
    ]
    simulate(asked, [replica], RoundRobin())
    return lines
