"""Long runs in bounded memory: what is thinned keeps its sums, its extremes and its figures."""

from __future__ import annotations

from random import Random

import pytest

from chairlift.cli.report import SimulationRecord
from chairlift.metrics.latency import percentile
from chairlift.report.owners import MAX_OWNERS, OTHERS, Names, Service
from chairlift.report.page import to_html
from chairlift.report.spans import Span, Spans
from chairlift.report.thinning import MAX_POINTS, MAX_SHARES, distribution, series
from chairlift.report.timeline import MIN_SPANS, Budget, Window
from chairlift.report.values import MAX_DISTINCT, Values
from chairlift.sim.cost.plain import PlainCost
from chairlift.sim.fleet import EngineSetup
from chairlift.sim.router import RoundRobin
from chairlift.sim.run import simulate
from chairlift.sim.workload import Asked, Part, blocks


def step(number: int) -> Span:
    return Span(
        begin=float(number),
        end=number + 0.5,
        num_steps=1,
        busy_s=0.5,
        decode_row_s=0.5 * (number % 7),
        chunk_row_s=0.5 * (number % 2),
        filler_row_s=0.0,
        max_rows=number % 7 + number % 2,
        num_tokens=number,
        num_chunk_tokens=number % 3,
        held_blocks=number % 11,
        max_held_blocks=number % 11,
        kept_blocks=number % 5,
    )


@pytest.mark.parametrize("num_steps", [1, 7, 8, 9, 16, 17, 100, 1001])
@pytest.mark.parametrize("max_spans", [2, 8])
def test_spans_are_few_and_lose_no_step(num_steps: int, max_spans: int) -> None:
    spans = Spans(max_spans)
    for number in range(num_steps):
        spans.add(step(number))
    found = spans.spans
    assert len(found) <= max_spans
    assert [span.num_steps for span in found[:-1]] == [spans.width] * (len(found) - 1)
    assert sum(span.num_steps for span in found) == num_steps
    assert sum(span.num_tokens for span in found) == sum(range(num_steps))
    assert sum(span.busy_s for span in found) == 0.5 * num_steps
    place = 0
    for span in found:
        steps = [step(number) for number in range(place, place + span.num_steps)]
        assert (span.begin, span.end) == (steps[0].begin, steps[-1].end)
        assert span.decode_row_s == sum(one.decode_row_s for one in steps)
        assert span.max_rows == max(one.max_rows for one in steps)
        assert span.max_held_blocks == max(one.held_blocks for one in steps)
        assert (span.held_blocks, span.kept_blocks) == (steps[-1].held_blocks, steps[-1].kept_blocks)
        place += span.num_steps


def test_spans_are_steps_while_there_is_room() -> None:
    spans = Spans(64)
    for number in range(64):
        spans.add(step(number))
    assert spans.spans == [step(number) for number in range(64)]


def test_values_are_exact_while_they_are_few_and_close_when_they_are_many() -> None:
    rng = Random(1)
    drawn = [rng.lognormvariate(-4, 1) for _ in range(MAX_DISTINCT)]
    values = Values()
    for value in drawn:
        values.add(value)
    assert list(values.counted()) == sorted(drawn)
    more = [rng.lognormvariate(-4, 1) for _ in range(1000)]
    for value in more:
        values.add(value)
    everything = sorted(drawn + more)
    counted = values.counted()
    assert values.is_rounded
    assert len(counted) == len(everything)
    assert len(counted.values) < MAX_DISTINCT
    for percent in (0.0, 1.0, 50.0, 99.0, 99.9, 100.0):
        assert percentile(counted, percent) == pytest.approx(percentile(everything, percent), rel=5.1e-4)
    assert values.sum == pytest.approx(sum(everything))


def test_a_curve_of_many_values_is_short_and_right_wherever_it_has_a_point() -> None:
    rng = Random(2)
    drawn = sorted(rng.expovariate(10.0) for _ in range(20_000))
    values = Values()
    for value in drawn:
        values.add(value)
    found = distribution(values.counted())
    assert found is not None
    assert len(found.value) <= MAX_SHARES + 1
    assert found.share == sorted(found.share)
    assert found.share[-1] == 1.0
    assert found.value[-1] == round(drawn[-1], 6)
    assert max(b - a for a, b in zip(found.share, found.share[1:], strict=False)) < 0.006
    for value, share in zip(found.value, found.share, strict=True):
        assert share == pytest.approx(sum(one <= value + 5e-7 for one in drawn) / len(drawn), abs=2e-4)


def test_a_thinned_series_keeps_its_area_and_its_extremes() -> None:
    rng = Random(3)
    changes: list[tuple[float, int]] = []
    for _ in range(20_000):
        begin = rng.uniform(0.0, 100.0)
        changes += [(begin, 1), (min(100.0, begin + rng.expovariate(1.0)), -1)]
    thin, most = series(changes, 0.0, 100.0)
    assert len(thin.time) == MAX_POINTS
    area = -sum(time * change for time, change in changes)
    assert sum(thin.value) * 100.0 / MAX_POINTS == pytest.approx(area, rel=1e-4)
    assert max(thin.high) == most
    assert all(low <= value <= high for low, value, high in zip(thin.low, thin.value, thin.high, strict=True))


def test_a_short_series_is_exact() -> None:
    found, most = series([(2.0, 1), (1.0, 1), (3.0, -1), (1.0, 2), (4.0, -3), (-5.0, 1)], 0.0, 5.0)
    assert (found.time, found.value, most) == ([0.0, 1.0, 2.0, 3.0, 4.0], [1.0, 4.0, 5.0, 4.0, 1.0], 5)
    assert not found.high


def test_past_many_names_the_others_share_one() -> None:
    names = Names()
    numbers = [names.number(f"tenant {i}") for i in range(MAX_OWNERS + 30)]
    assert numbers[:MAX_OWNERS] == list(range(MAX_OWNERS))
    assert set(numbers[MAX_OWNERS:]) == {MAX_OWNERS}
    assert names.names[-1] == OTHERS
    assert names.number("tenant 3") == 3


def test_curves_of_service_keep_their_last_point() -> None:
    names = Names()
    service = Service(names, 1.0, 2.0)
    owner = names.number("a")
    service.start(owner, 1)
    for number in range(5000):
        service.num_decode_steps += 1
        service.sample(float(number))
    service.stop(owner)
    service.close(5000.0)
    assert len(service.times) <= 513
    assert service.times == sorted(service.times)
    assert service.points[-1] == [2.0 * 5001]
    for time, point in zip(service.times[:-1], service.points[:-1], strict=True):
        assert point == [2.0 * (time + 2)]


def test_engines_share_what_a_page_holds() -> None:
    """A fleet's page is not as many times larger as it has engines."""
    record = SimulationRecord(Window(), Budget(num_stays=100, num_chunks=10_000))
    setup = EngineSetup(cost=PlainCost(0.005), max_num_seqs=4, num_blocks=64)
    fleet = []
    for number in range(64):
        scheduler = setup.scheduler()
        follower = record.follow(f"engine-{number}", scheduler)
        fleet.append(setup.replica(f"engine-{number}", scheduler=scheduler, on_step=follower.on_step))
    asked = [
        Asked(arrival=0.01 * number, prompt=blocks(Part(number + 1, number + 1, 8)), num_output=160)
        for number in range(240)
    ]
    run = record.picture("fleet", simulate(asked, fleet, RoundRobin()))
    assert sum(len(engine.stays.slot) for engine in run.engines) == 100
    assert max(len(engine.steps.begin) for engine in run.engines) <= MIN_SPANS
    assert max(engine.num_steps for engine in run.engines) > MIN_SPANS
    assert all(len(engine.curves.time) <= MIN_SPANS + 1 for engine in run.engines)
    assert sum(engine.curves.service[0][-1] for engine in run.engines) == 240 * (8 + 2 * 160)
    assert sum(sum(engine.steps.tokens) for engine in run.engines) == 240 * (8 + 159)
    assert len(to_html([run])) < 1_000_000
