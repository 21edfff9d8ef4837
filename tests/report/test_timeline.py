"""The figures of a picture against the same figures made in another way: from every token and every step."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from random import Random

import pytest

from chairlift.cli.report import SimulationRecord
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import StepOutput, StepPlan
from chairlift.metrics.latency import percentile
from chairlift.report.data import Distribution, Run
from chairlift.report.timeline import Budget, Window
from chairlift.sim.result import Result, figures, latencies
from chairlift.sim.router import RoundRobin
from chairlift.sim.run import simulate
from sim.worlds import random_setup, random_workload

SEEDS = range(24)


@dataclass(slots=True)
class Witness:
    """Writes down everything, and asks the scheduler after every step."""

    scheduler: Scheduler
    steps: list[tuple[float, float, int, int, int, int]] = field(default_factory=list)
    """(begin, end, decodes, chunks, fillers, blocks in use)."""
    seated: dict[int, tuple[int, int]] = field(default_factory=dict)
    fillers: list[tuple[int, float, float]] = field(default_factory=list)
    """(slot, begin, end) of each step in which a row was computed for nobody."""
    occupied: list[tuple[int, int, int, float, float]] = field(default_factory=list)
    """(slot, request, choice, begin, end) of each step in which a row was computed for an answer."""
    tokens: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    chunk_tokens: dict[str, int] = field(default_factory=dict)
    output_tokens: dict[str, int] = field(default_factory=dict)
    owners: dict[int, str] = field(default_factory=dict)
    num_preemptions: int = 0

    def __call__(self, plan: StepPlan, output: StepOutput, begun: float, finished: float) -> None:
        for join in plan.joins:
            self.seated[join.slot] = join.request.id, join.choice
            self.owners[join.request.id] = join.request.principal
        for slot in [*plan.decodes, *(chunk.slot for chunk in plan.chunks)]:
            self.occupied.append((slot, *self.seated[slot], begun, finished))
        self.fillers += [(slot, begun, finished) for slot in plan.fillers]
        for chunk in plan.chunks:
            owner = self.owners[self.seated[chunk.slot][0]]
            self.chunk_tokens[owner] = self.chunk_tokens.get(owner, 0) + chunk.count
        for key in output.keys:
            self.tokens.setdefault(key, []).append(finished)
            owner = self.owners[key[0]]
            self.output_tokens[owner] = self.output_tokens.get(owner, 0) + 1
        counts = len(plan.decodes), len(plan.chunks), len(plan.fillers)
        self.steps.append((begun, finished, *counts, self.scheduler.stats().num_used_blocks))


@dataclass(slots=True)
class Both:
    """Two who hear of the same steps."""

    record: SimulationRecord
    witness: Witness | None = None

    def run(self, seed: int) -> tuple[Result, Run, Witness]:
        setup = random_setup(Random(f"setup {seed}"))
        scheduler = setup.scheduler()
        timeline = self.record.follow("engine-0", scheduler)
        witness = self.witness = Witness(scheduler)

        def on_step(plan: StepPlan, output: StepOutput, begun: float, finished: float) -> None:
            witness(plan, output, begun, finished)
            timeline.on_step(plan, output, begun, finished)

        replica = setup.replica("engine-0", scheduler=scheduler, on_step=on_step)
        result = simulate(random_workload(seed), [replica], RoundRobin())
        return result, self.record.picture("run", result), witness


@cache
def pictured(seed: int, window: Window | None = None, num_stays: int = 1 << 20) -> tuple[Result, Run, Witness]:
    return Both(SimulationRecord(Window() if window is None else window, Budget(num_stays))).run(seed)


def about(value: float) -> object:
    """Times in a picture are in whole microseconds."""
    return pytest.approx(value, abs=1.1e-6)


def summary(found: Distribution | None) -> tuple[float, ...] | None:
    return None if found is None else (found.mean, found.p50, found.p90, found.p99)


@pytest.mark.parametrize("seed", SEEDS)
def test_latencies_are_those_of_the_tables(seed: int) -> None:
    result, run, _ = pictured(seed)
    wanted = latencies(result, (90.0, 99.0))
    for ours, theirs in (("ttft", "ttft"), ("itl", "itl"), ("e2e", "e2el"), ("queue", "queue")):
        expected = wanted.get(theirs)
        if expected is None:
            assert ours not in run.latencies
            continue
        found = run.latencies[ours]
        for value, figure in (
            (found.mean, expected.mean),
            (found.p50, expected.median),
            (found.p90, expected.percentiles[90.0]),
            (found.p99, expected.percentiles[99.0]),
        ):
            assert value == about(figure), ours


@pytest.mark.parametrize("seed", SEEDS)
def test_gaps_between_tokens_are_those_of_every_token(seed: int) -> None:
    _, run, witness = pictured(seed)
    gaps = sorted(later - before for times in witness.tokens.values() for before, later in pairwise(times))
    found = run.latencies.get("itl")
    assert (found is None) == (not gaps)
    if found is not None:
        assert found.count == len(gaps)
        assert (found.p50, found.p99) == (about(percentile(gaps, 50.0)), about(percentile(gaps, 99.0)))
        for value, share in zip(found.value, found.share, strict=True):
            num_below, num_at_most = bisect_left(gaps, value - 1.1e-6), bisect_right(gaps, value + 1.1e-6)
            assert num_below / len(gaps) - 2e-5 <= share <= num_at_most / len(gaps) + 2e-5
        assert found.share[-1] == 1.0


@pytest.mark.parametrize("seed", SEEDS)
def test_totals_are_those_of_the_run(seed: int) -> None:
    result, run, witness = pictured(seed)
    engine = run.engines[0]
    tally = result.replicas[0].tally
    assert run.requests == len(result.served)
    assert (run.completed, run.unfinished) == (len(result.completed), 0)
    assert run.refused == sum(served.error is not None for served in result.served)
    completed = {served.id for served in result.completed}
    num_seen = sum(len(times) for (request_id, _), times in witness.tokens.items() if request_id in completed)
    assert run.output_tokens == result.num_output_tokens == num_seen
    assert run.preemptions == result.replicas[0].scheduler.stats().num_preemptions
    assert run.preemptions == sum(finish.num_preemptions for served in result.served for finish in served.finishes)
    assert engine.num_steps == tally.num_steps
    assert engine.busy_s == about(tally.busy_s)
    assert engine.num_filler_rows == tally.num_filler_rows


@pytest.mark.parametrize("seed", SEEDS)
def test_figures_are_those_of_the_table(seed: int) -> None:
    """Also where answers came too late, and where alarms are still set when all is over."""
    result, run, _ = pictured(seed)
    table = figures(result)
    assert run.duration_s == about(table["duration"])
    assert run.engines[0].busy_s / run.duration_s == pytest.approx(table["replicas"][0]["utilization"], abs=1e-4)
    assert run.output_tokens == table["total_output_tokens"]
    assert run.output_tokens / run.duration_s == pytest.approx(table["output_throughput"], rel=1e-4)
    assert (run.prompt_tokens, run.cached_tokens) == (table["prefix_queried_tokens"], table["prefix_hit_tokens"])
    groups = {group.name: group for group in run.groups}
    assert sum(group.prompt_tokens for group in run.groups) == table["total_input_tokens"]
    for row in table["tenants"]:
        group = groups[row["principal"]]
        assert (group.requests, group.completed) == (row["num_requests"], row["completed"])
        assert (group.prompt_tokens, group.output_tokens) == (row["total_input_tokens"], row["total_output_tokens"])


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_are_as_they_were(seed: int) -> None:
    _, run, witness = pictured(seed)
    steps = run.engines[0].steps
    assert steps.width == 1
    found = list(
        zip(steps.begin, steps.end, steps.decodes, steps.chunks, steps.fillers, steps.held, steps.max_rows, strict=True)
    )
    assert len(found) == len(witness.steps)
    for (begin, end, decodes, chunks, fillers, held, most), step in zip(found, witness.steps, strict=True):
        assert (begin, end) == (about(step[0]), about(step[1]))
        assert (decodes, chunks, fillers, held, most) == (*step[2:], sum(step[2:5]))


@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_is_computed_sits_in_a_slot_and_nobody_else_does(seed: int) -> None:
    """Every row of a step lies in a stay of its answer, stays of a slot do not overlap, and a chunk is in a stay."""
    result, run, witness = pictured(seed)
    engine = run.engines[0]
    stays, answers, chunks = engine.stays, engine.answers, engine.chunks
    spans: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
    by_slot: dict[int, list[tuple[float, float]]] = {}
    for slot, answer, joined, left, held in zip(
        stays.slot, stays.answer, stays.joined, stays.left, stays.held_until, strict=True
    ):
        spans.setdefault((slot, answers.id[answer], answers.choice[answer]), []).append((joined, left))
        by_slot.setdefault(slot, []).append((joined, max(left, held)))
    for slot, request, choice, begin, end in witness.occupied:
        assert any(a - 1.1e-6 <= begin and end <= b + 1.1e-6 for a, b in spans[slot, request, choice])
    for times in by_slot.values():
        for (_, end), (begin, _) in pairwise(sorted(times)):
            assert end <= begin + 1.1e-6
    assert len(chunks.stay) == sum(step[3] for step in witness.steps)
    for stay, begin, seconds in zip(chunks.stay, chunks.begin, chunks.seconds, strict=True):
        assert stays.joined[stay] - 1.1e-6 <= begin and begin + seconds <= stays.left[stay] + 2.2e-6
    num_preempted = sum(why == "preempted" for why in stays.why)
    assert num_preempted == run.preemptions
    finishes = {
        (f.id, f.choice): f for served in result.served for f in served.finishes if f.first_scheduled is not None
    }
    assert {(answers.id[i], answers.choice[i]) for i in range(len(answers.id))} <= set(finishes)
    for slot, answer, joined, again in zip(stays.slot, stays.answer, stays.joined, stays.again, strict=True):
        if not again:
            finish = finishes[answers.id[answer], answers.choice[answer]]
            assert joined == about(finish.first_scheduled or 0.0), slot


@pytest.mark.parametrize("seed", SEEDS)
def test_fillers_are_drawn_for_as_long_as_they_were_computed(seed: int) -> None:
    _, run, witness = pictured(seed)
    stays, num_slots = run.engines[0].stays, run.engines[0].num_slots
    held: dict[int, list[tuple[float, float]]] = {}
    for slot, left, until in zip(stays.slot, stays.left, stays.held_until, strict=True):
        if until >= 0:
            held.setdefault(slot, []).append((left, until))
    for slot, begin, end in witness.fillers:
        assert any(left <= begin + 1.1e-6 and end <= until + 1.1e-6 for left, until in held[slot])
    drawn = sum(until - left for spans in held.values() for left, until in spans)
    computed = sum(end - begin for _, begin, end in witness.fillers)
    # A step of chunks alone computes no fillers, and between two steps nothing is computed.
    others = run.duration_s - sum(end - begin for begin, end, _, _, fillers, _ in witness.steps if fillers)
    assert drawn <= computed + num_slots * others + 1e-3
    assert bool(drawn) <= (run.engines[0].num_filler_rows > 0)


def waiting_at(result: Result, run: Run, time: float) -> int:
    """Answers that wait at a time, from their arrivals, ends and stays."""
    stays, answers = run.engines[0].stays, run.engines[0].answers
    waiting = 0
    for served in result.served:
        for finish in served.finishes:
            if not finish.arrival <= time < finish.finished:
                continue
            waiting += not any(
                stays.joined[i] <= time < stays.left[i]
                for i in range(len(stays.slot))
                if (answers.id[stays.answer[i]], answers.choice[stays.answer[i]]) == (finish.id, finish.choice)
            )
    return waiting


@pytest.mark.parametrize("seed", SEEDS[:12])
def test_the_queue_is_as_long_as_those_who_wait_are_many(seed: int) -> None:
    result, run, _ = pictured(seed)
    waiting = run.engines[0].waiting
    assert not waiting.high, "exact for a run like this"
    middles = [a + 0.382 * (b - a) for a, b in pairwise([*waiting.time, run.duration_s]) if b - a > 1e-5]
    for time in middles[:: max(1, len(middles) // 40)]:
        place = max(i for i, begin in enumerate(waiting.time) if begin <= time)
        assert waiting.value[place] == waiting_at(result, run, time)
    assert run.engines[0].max_waiting == max(waiting.value)


@pytest.mark.parametrize("seed", SEEDS)
def test_service_is_what_was_computed_for_each_tenant(seed: int) -> None:
    _, run, witness = pictured(seed)
    curves = run.engines[0].curves
    assert (curves.input_weight, curves.output_weight) == (1.0, 2.0)
    for owner, values in enumerate(curves.service):
        name = run.groups[owner].name
        assert list(values) == sorted(values)
        assert values[-1] == witness.chunk_tokens.get(name, 0) + 2.0 * witness.output_tokens.get(name, 0)
    assert sum(group.output_tokens for group in run.groups) == run.output_tokens


def test_a_window_keeps_the_stays_that_touch_it_whole() -> None:
    _, whole, _ = pictured(3)
    duration = whole.duration_s
    begin, end = duration * 0.4, duration * 0.5
    _, part, _ = pictured(3, Window(begin=begin, end=end))

    def stays(run: Run) -> list[tuple[float, ...]]:
        one = run.engines[0]
        ids = [one.answers.id[answer] for answer in one.stays.answer]
        return list(zip(one.stays.slot, ids, one.stays.joined, one.stays.left, strict=True))

    assert stays(part) == [stay for stay in stays(whole) if stay[3] >= begin - 1e-6 and stay[2] < end]
    assert 0 < len(stays(part)) < len(stays(whole))
    assert part.latencies == whole.latencies
    assert part.engines[0].steps == whole.engines[0].steps
    assert not part.notes


def test_a_long_run_is_cut_where_the_page_would_be_too_large_and_says_so() -> None:
    _, whole, _ = pictured(5)
    _, part, _ = pictured(5, num_stays=20)
    engine = part.engines[0]
    assert len(engine.stays.slot) == 20
    assert engine.stays_until < part.duration_s
    everybody = whole.engines[0].stays
    assert sum(joined < engine.stays_until - 1e-6 for joined in everybody.joined) <= 20
    found = list(zip(engine.stays.slot, engine.stays.joined, engine.stays.left, strict=True))
    assert found == list(zip(everybody.slot, everybody.joined, everybody.left, strict=True))[:20]
    assert any("slots are shown up to" in note for note in part.notes)
    assert not whole.notes


def test_many_engines_share_one_account_of_requests() -> None:
    setup = random_setup(Random("fleet"))
    record = SimulationRecord(Window())
    fleet = []
    for name in ("a", "b", "c"):
        scheduler = setup.scheduler()
        follower = record.follow(name, scheduler)
        fleet.append(setup.replica(name, scheduler=scheduler, on_step=follower.on_step))
    result = simulate(random_workload(5), fleet, RoundRobin())
    run = record.picture("fleet", result)
    assert [engine.name for engine in run.engines] == ["a", "b", "c"]
    assert run.latencies["ttft"].count == len(result.completed)
    assert run.latencies["itl"].p99 == about(latencies(result, (99.0,))["itl"].percentiles[99.0])
    ids = [set(engine.answers.id) for engine in run.engines]
    assert all(ids) and not ids[0] & ids[1] and not ids[1] & ids[2]
