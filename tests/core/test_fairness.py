"""Fair order: what is charged, and to whom."""

from __future__ import annotations

from dataclasses import replace

from chairlift.core.engine import Engine
from chairlift.core.fairness import MAX_IDLE_COUNTERS, Counters
from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, Limits, Request, SamplingParams, StepOutput
from fakes import VOCAB_SIZE, FakeExecutor, prompt
from forcing import preempt

SHAPE = CacheShape(256, 4)


def make_engine(
    max_num_seqs: int = 4, budget: int = 64, weights: dict[str, float] | None = None, charges_ahead: bool = True
) -> Engine:
    policy = Policy(scheduling_policy="fair", weights=weights or {}, charges_ahead=charges_ahead)
    scheduler = Scheduler(Limits(max_num_seqs, budget, 200), SHAPE, vocab_size=VOCAB_SIZE, policy=policy)
    return Engine(scheduler, FakeExecutor(SHAPE))


def ask(number: int, principal: str, tenant: str = "", length: int = 10, max_tokens: int = 10) -> Request:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return Request(number, prompt(length, first=number), params, principal=principal, tenant=tenant)


def served(engine: Engine) -> dict[str, float]:
    service = engine.scheduler._service
    assert service is not None
    return service.principals.service


def step(engine: Engine) -> list[int]:
    """Ids of the tokens of one step."""
    return [key[0] for key in (engine.step(0.0) or StepOutput()).keys]


def test_in_the_end_each_is_charged_what_it_got() -> None:
    """Prompt tokens computed for the first time and generated tokens, by weight: no cached, no recomputed ones."""
    engine = make_engine(weights={"a": 2.0})
    first = ask(1, "a", length=21, max_tokens=30)
    engine.add(first)
    for _ in range(12):
        step(engine)
    preempt(engine.scheduler, engine.scheduler._running.decoding[0])
    while engine.has_work:
        step(engine)
    assert engine.stats().num_preemptions == 1
    assert served(engine)["a"] == (21 + 2 * 30) / 2.0
    before = served(engine)["a"]
    engine.add(replace(first, id=2, params=replace(first.params, max_tokens=3)))
    step(engine)
    assert engine.scheduler._live[2][0].paid_inputs == 1
    for _ in range(9):
        step(engine)
    assert not engine.has_work
    assert engine.stats().prefix_hits == 20
    assert served(engine)["a"] - before == (1 + 2 * 3) / 2.0


def shares(engine: Engine, asks: dict[int, Request], num_steps: int) -> dict[str, int]:
    """Generated tokens by principal, while everybody always has something waiting."""
    tokens: dict[str, int] = {}
    for _ in range(num_steps):
        for number in step(engine):
            principal = asks[number].principal
            tokens[principal] = tokens.get(principal, 0) + 1
    return tokens


def backlog(engine: Engine, requests: list[Request]) -> dict[int, Request]:
    for request in requests:
        engine.add(request)
    return {request.id: request for request in requests}


def test_invented_tenants_gain_nothing() -> None:
    engine = make_engine()
    plain = [ask(i, "plain") for i in range(0, 200, 2)]
    inventive = [ask(i, "inventive", tenant=f"t{i}") for i in range(1, 401, 2)]
    got = shares(engine, backlog(engine, [*plain, *inventive]), 150)
    assert abs(got["plain"] - got["inventive"]) <= 40


def test_weights_are_shares() -> None:
    engine = make_engine(weights={"a": 3.0})
    got = shares(engine, backlog(engine, [ask(i, "ab"[i % 2]) for i in range(300)]), 200)
    assert 2.6 <= got["a"] / got["b"] <= 3.4


def test_who_pauses_saves_nothing_up() -> None:
    """One that was away while another was served long gets its half from then on, not all of it."""
    engine = make_engine()
    asks = backlog(engine, [ask(i, "a") for i in range(200)])
    shares(engine, asks, 150)
    asks |= backlog(engine, [ask(i, "b") for i in range(200, 400)])
    got = shares(engine, asks, 100)
    assert got["a"] >= 0.35 * got["b"]
    assert got["b"] >= 0.7 * got["a"]


def test_long_outputs_are_charged_as_they_grow() -> None:
    """Nobody gains by asking for little at first: outputs beyond the expected are charged while they come."""
    engine = make_engine(max_num_seqs=2)
    asks = backlog(engine, [ask(i, "short", max_tokens=2) for i in range(400)])
    shares(engine, asks, 40)
    engine.add(ask(1000, "long", max_tokens=150))
    for _ in range(30):
        step(engine)
    sequence = engine.scheduler._live[1000][0]
    assert sequence.num_output > 15
    assert sequence.paid_outputs >= sequence.num_output


def test_names_that_nobody_uses_are_forgotten_and_those_served_most_are_the_last() -> None:
    counters = Counters({})
    for number in range(MAX_IDLE_COUNTERS + 2):
        name = str(number)
        counters.enter(name)
        counters.join(name)
        counters.charge(name, float(number))
        counters.leave(name)
    assert len(counters.service) < MAX_IDLE_COUNTERS * 0.6
    assert str(MAX_IDLE_COUNTERS) in counters.service
    assert "1" not in counters.service


def test_as_published_output_is_charged_as_it_comes() -> None:
    """A block ahead at most; in the end it is the same."""
    charged, ended = [], []
    for charges_ahead in (True, False):
        engine = make_engine(charges_ahead=charges_ahead)
        engine.add(ask(1, "a"))
        step(engine)
        charged.append(served(engine)["a"])
        while engine.has_work:
            step(engine)
        ended.append(served(engine)["a"])
    assert charged == [10 + 2 * 10, 10 + 2 * (1 + SHAPE.block_size)]
    assert ended == [30.0, 30.0]


def test_as_published_a_newcomer_is_lifted_to_the_least_of_those_who_wait() -> None:
    counters = Counters({}, charges_ahead=False)
    counters.enter("a")
    counters.enter("b")
    counters.charge("a", 500.0)
    counters.charge("b", 300.0)
    counters.enter("c")
    assert counters.service["c"] == 300.0
    for name in "abc":
        counters.join(name)
    counters.enter("d")
    assert counters.service["d"] == 0.0
