"""The same traffic under static, dynamic and continuous batching: what holding a batch to its end costs.

Answers have lengths as chats have them, log-normal: most are short, a few very long. A batch that is held lasts as long
as its longest member, so that its other slots compute for nobody.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any, get_args

from chairlift.bench.arrivals import Arrivals
from chairlift.bench.in_process import Recording, Show, StartLoop, serve
from chairlift.bench.report import Report, Wanted, make_report
from chairlift.bench.report import to_json as report_to_json
from chairlift.core.errors import ChairliftError, InvalidOption
from chairlift.core.policy import BatchingName, Policy
from chairlift.core.types import Request, SamplingParams
from chairlift.sim.table import aligned

PERCENTS = (50.0, 99.0)
PROBE_TOKENS = 16
"""Answers of the batch that is timed to find a rate: long enough for a median step."""
AUTO_SHARE = 0.85
"""Of what continuous batching can serve: arrivals come in bunches, and a queue must be able to empty."""
MIN_OVERLOAD = 1.25
"""How far above what static batching can serve at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests to serve; the same for the same seed.

    Answers have `output_median` tokens in the median, with `output_sigma` as the standard deviation of the logarithm,
    and at most `output_max`. Prompts are random tokens, so that nothing is found in a cache.

    Raises:
        InvalidOption: numbers that make no traffic.
    """

    num_prompts: int
    prompt_tokens: int
    output_median: float
    output_sigma: float
    output_max: int
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_prompts", "prompt_tokens", "output_max"):
            if getattr(self, name) < 1:
                raise InvalidOption(f"{name} must be at least 1")
        if not 1.0 <= self.output_median <= self.output_max:
            raise InvalidOption("output_median must be at least 1 and at most output_max")
        if not 0.0 <= self.output_sigma < math.inf:
            raise InvalidOption("output_sigma must be at least 0")

    def output_lens(self) -> list[int]:
        """Tokens of each answer."""
        random = Random(self.seed)
        middle = math.log(self.output_median)
        lens = (random.lognormvariate(middle, self.output_sigma) for _ in range(self.num_prompts))
        return [min(max(round(tokens), 1), self.output_max) for tokens in lens]

    def requests(self, vocab_size: int) -> list[Request]:
        """Greedy, and as long as they should be whatever the model says; ids count from 0."""
        random = Random(self.seed + 1)
        return [
            Request(
                i,
                [random.randrange(vocab_size) for _ in range(self.prompt_tokens)],
                SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True),
            )
            for i, tokens in enumerate(self.output_lens())
        ]


# ---------------------------------------------------------------- a rate that tells them apart


@dataclass(frozen=True, slots=True)
class Capacity:
    """Requests per second that can be served for long, as estimated from one full batch."""

    static: float
    continuous: float

    @property
    def rate(self) -> float:
        """One that static batching cannot keep up with, and continuous batching can where lengths vary enough."""
        return max(AUTO_SHARE * self.continuous, MIN_OVERLOAD * self.static)


def measure_capacity(
    start: StartLoop,
    policy: Policy,
    traffic: Traffic,
    vocab_size: int,
    max_num_seqs: int,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Capacity:
    """Time one batch of short answers that fills every slot, and count what the traffic's lengths make of that.

    Raises:
        ChairliftError: a request was refused, or the engine broke.
    """
    tokens = min(PROBE_TOKENS, traffic.output_max)
    probe = replace(traffic, num_prompts=max_num_seqs, output_median=tokens, output_sigma=0.0, output_max=tokens)
    held = with_batching(policy, "static")
    recording = serve(start, held, probe.requests(vocab_size), [0.0] * max_num_seqs, clock=clock, sleep=sleep)
    _check(recording)
    step_s = statistics.median(recording.decode_step_s or recording.prompt_step_s)
    prompt_s = sum(recording.prompt_step_s) / max_num_seqs
    return estimate_capacity(traffic.output_lens(), max_num_seqs, prompt_s, step_s)


def estimate_capacity(output_lens: Sequence[int], max_num_seqs: int, prompt_s: float, step_s: float) -> Capacity:
    """What full steps of `step_s` and `prompt_s` for each prompt can serve, with answers of these lengths.

    A static batch takes as many steps as its longest answer has tokens; under continuous batching every slot is of use.
    The first token comes with the prompt.
    """
    batches = _batches(output_lens, max_num_seqs)
    static_s = sum(len(batch) * prompt_s + (max(batch) - 1) * step_s for batch in batches)
    num = len(output_lens)
    continuous_s = num * prompt_s + (sum(output_lens) - num) / max_num_seqs * step_s
    return Capacity(sum(map(len, batches)) / static_s, num / continuous_s)


def _batches(output_lens: Sequence[int], size: int) -> list[Sequence[int]]:
    """Whole batches, if there is one: the rest would run half empty."""
    whole = len(output_lens) - len(output_lens) % size or len(output_lens)
    return [output_lens[first : first + size] for first in range(0, whole, size)]


# ---------------------------------------------------------------- all three, side by side


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one policy. `slot_use` is the share of slots, over all steps, that computed something for somebody."""

    batching: BatchingName
    report: Report
    slot_use: float
    num_steps: int

    @property
    def output_tokens_per_s(self) -> float:
        return self.report.per_s(self.report.num_output_tokens)

    def latency_s(self, name: str, percent: float) -> float:
        """A percentile of a latency of `Report`; NaN where nobody had one."""
        summary = self.report.latencies.get(name)
        return math.nan if summary is None else summary.percentiles[percent]

    def to_json(self) -> dict[str, Any]:
        return {
            "batching": self.batching,
            "slot_use": self.slot_use,
            "num_steps": self.num_steps,
            **report_to_json(self.report),
        }


def with_batching(policy: Policy, batching: BatchingName) -> Policy:
    """The same with another batching. A static batch starts when it is full, or nothing more comes."""
    wait_s = policy.max_batch_wait_s if batching == "dynamic" else None
    return replace(policy, batching=batching, max_batch_wait_s=wait_s)


def compare(
    start: StartLoop,
    policy: Policy,
    traffic: Traffic,
    request_rate: float,
    vocab_size: int,
    max_num_seqs: int,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    show: Callable[[BatchingName], Show],
) -> list[Row]:
    """Serve the traffic under each batching, one after the other.

    Raises:
        ChairliftError: a request failed: its tokens would be missing from the figures.
    """
    requests = traffic.requests(vocab_size)
    arrivals = Arrivals(request_rate).times(len(requests), traffic.seed)
    rows = []
    for batching in get_args(BatchingName):
        recording = serve(
            start,
            with_batching(policy, batching),
            requests,
            arrivals,
            clock=clock,
            sleep=sleep,
            show=show(batching),
        )
        _check(recording)
        use = recording.num_useful_rows / (recording.num_steps * max_num_seqs)
        rows.append(Row(batching, make_report(recording.load, Wanted(percentiles=PERCENTS)), use, recording.num_steps))
    return rows


def _check(recording: Recording) -> None:
    for exchange in recording.load.exchanges:
        if exchange.error is not None:
            raise ChairliftError(f"an answer failed: {exchange.error}")


def to_table(rows: Sequence[Row]) -> str:
    """One line a policy."""
    head = ["policy", "tok/s", "slot use"]
    head += [f"{name} {percent}" for name in ("TTFT", "ITL", "E2E") for percent in ("p50", "p99")]
    lines = [head]
    for row in rows:
        cells = [row.batching, f"{row.output_tokens_per_s:.0f}", f"{100 * row.slot_use:.0f}%"]
        for name, factor, unit in (("ttft", 1.0, "s"), ("itl", 1e3, "ms"), ("e2el", 1.0, "s")):
            digits = 0 if unit == "ms" else 2
            cells += [f"{row.latency_s(name, percent) * factor:.{digits}f} {unit}" for percent in PERCENTS]
        lines.append(cells)
    return aligned(lines)


def to_json(
    traffic: Traffic, request_rate: float, capacity: Capacity | None, max_num_seqs: int, rows: Sequence[Row]
) -> dict[str, Any]:
    """Everything: what was served, what was expected, and the figures of each policy as `bench serve` saves them."""
    return {
        "traffic": asdict(traffic),
        "request_rate": request_rate if math.isfinite(request_rate) else "inf",
        "estimated_capacity": None if capacity is None else asdict(capacity),
        "max_num_seqs": max_num_seqs,
        "policies": [row.to_json() for row in rows],
    }


def to_headline(traffic: Traffic, request_rate: float, max_num_seqs: int) -> str:
    """What was served, above the table."""
    lens = traffic.output_lens()
    mean = statistics.fmean(lens)
    return (
        f"{traffic.num_prompts} requests at {request_rate:.2f}/s (demand {request_rate * mean:.0f} tok/s), prompts of "
        f"{traffic.prompt_tokens} tokens, answers of {statistics.median(lens):.0f} in the median, {mean:.0f} on "
        f"average, {max(lens)} at most; {max_num_seqs} slots"
    )


def to_verdict(rows: Sequence[Row]) -> str:
    """What continuous batching gained over static batching, below the table."""
    by_name = {row.batching: row for row in rows}
    static, continuous = by_name["static"], by_name["continuous"]
    tokens = continuous.output_tokens_per_s / static.output_tokens_per_s
    ttft = static.latency_s("ttft", 50.0) / continuous.latency_s("ttft", 50.0)
    share = f"1/{ttft:.0f} of" if ttft >= 1.5 else f"{1 / ttft:.1f} times"
    return f"continuous over static: {tokens:.1f} times the tokens per second, {share} the TTFT in the median"
