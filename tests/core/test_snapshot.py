"""A scheduler as data and back: nothing is left out, nothing is made up."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from chairlift.core.prefix import block_content, chain_key, root_key
from chairlift.core.scheduler import Scheduler
from chairlift.core.sequence import Sequence
from chairlift.core.snapshot import CLASSES, DERIVED, ENUMS, Entry, capture, forget_unreachable, restore
from chairlift.core.types import CacheShape, Limits, Request, SamplingParams, StepResult
from core import swarm
from fakes import VOCAB_SIZE
from invariants import check_invariants
from journal.recording import busy_scheduler

SEEDS = range(20)


def no_matcher(request: Request, choice: int) -> None:
    return None


def restored(entries: list[Entry]) -> Scheduler:
    return restore(entries, no_matcher)


def through_json(entries: list[Entry]) -> list[Entry]:
    decoded = []
    for line in [msgspec.json.encode(entry) for entry in entries]:
        entry = msgspec.json.decode(line, type=Entry)
        if entry.of == "Request":
            entry.fields["request"] = msgspec.convert(entry.fields["request"], Request)
        decoded.append(entry)
    return decoded


def as_lines(entries: list[Entry]) -> list[bytes]:
    """Without who watches, which whoever restores decides."""
    return [msgspec.json.encode(Entry(entry.of, {**entry.fields, "is_watched": None})) for entry in entries]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_scheduler_comes_back_as_it_was(seed: int) -> None:
    scheduler = busy_scheduler(seed)
    entries = capture(scheduler)
    again = restored(through_json(entries))
    assert as_lines(capture(again)) == as_lines(entries)
    check_invariants(again)


def objects_of(scheduler: Scheduler) -> Iterator[Any]:
    """Every object of ours that can be reached, found without the snapshot's own walk."""
    seen: dict[int, Any] = {}
    todo: list[Any] = [scheduler]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, int | float | str | bytes | type | None) or callable(one):
            continue
        seen[id(one)] = one
        if isinstance(one, dict):
            todo += [*one, *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            todo += one
        else:
            yield one
            todo += [getattr(one, name) for name in names_of(one)]


def names_of(one: Any) -> set[str]:
    """Attributes that an object can have, or has."""
    slots = {name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())}
    return {name for name in slots | set(getattr(one, "__dict__", ())) if hasattr(one, name)}


@pytest.mark.parametrize("seed", SEEDS)
def test_no_field_of_any_object_is_left_out(seed: int) -> None:
    """Whoever adds a field finds it in the snapshot, or finds this test."""
    scheduler = busy_scheduler(seed)
    kept: dict[str, set[str]] = {}
    for entry in capture(scheduler):
        kept.setdefault(entry.of, set()).update(entry.fields)
    for one in objects_of(scheduler):
        kind = type(one)
        if kind in (Request, SamplingParams) or kind in ENUMS or isinstance(one, swarm.StopAtSome):
            continue
        assert kind in CLASSES, kind
        probes = {name for name in vars(one) if hasattr(kind, name)} if hasattr(one, "__dict__") else set()
        missing = names_of(one) - probes - kept[kind.__name__]
        assert missing == (set(DERIVED) if kind is Sequence else {"_blocks", "_keys"} & missing), (kind, missing)


def test_most_classes_are_reached() -> None:
    """Or the tests here prove little."""
    reached = {entry.of for seed in SEEDS for entry in capture(busy_scheduler(seed))}
    assert {kind.__name__ for kind in CLASSES} - reached <= {"Finish", "Decisions", "StepTimes", "Controller"}


NOT_ALONE = {"ages_at", "is_watched", "num_chained", "num_prompt"}
"""Fields that mean something together with others only."""


def changed(value: object) -> object:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else f"{value}x"


@pytest.mark.parametrize("seed", range(6))
def test_every_field_is_put_back(seed: int) -> None:
    """A value that is changed in the snapshot is found changed in the scheduler."""
    entries = capture(busy_scheduler(seed))
    rng = random.Random(seed)
    places = [
        (place, name)
        for place, entry in enumerate(entries)
        for name, value in entry.fields.items()
        if isinstance(value, bool | int | float | str) and name not in NOT_ALONE
    ]
    for place, name in rng.sample(places, min(60, len(places))):
        before = entries[place].fields[name]
        entries[place].fields[name] = changed(before)
        try:
            after = capture(restored(entries))[place].fields[name]
        except ValueError:  # a choice that the scheduler cannot be made with
            continue
        finally:
            wanted, entries[place].fields[name] = entries[place].fields[name], before
        assert after == wanted, (entries[place].of, name)


def small() -> Scheduler:
    return Scheduler(Limits(4, 64, 100), CacheShape(20, 4), vocab_size=VOCAB_SIZE)


def ask(scheduler: Scheduler, number: int, prompt: list[int], max_tokens: int = 1) -> None:
    scheduler.add(Request(number, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True)))


def step(scheduler: Scheduler) -> None:
    plan = scheduler.schedule(0.0)
    assert plan is not None
    num_rows = len(plan.decodes) + sum(1 for chunk in plan.chunks if chunk.samples)
    scheduler.commit(StepResult([7] * num_rows), 0.0)


def test_a_snapshot_shares_nothing_that_changes() -> None:
    scheduler = small()
    ask(scheduler, 1, [1, 2, 3, 4, 5], max_tokens=20)
    step(scheduler)
    entries = capture(scheduler)
    before = as_lines(entries)
    for _ in range(9):
        step(scheduler)
    assert as_lines(entries) == before


def test_no_snapshot_of_a_step_in_flight() -> None:
    scheduler = small()
    ask(scheduler, 1, [1, 2, 3])
    scheduler.schedule(0.0)
    with pytest.raises(RuntimeError, match="between steps"):
        capture(scheduler)


def test_what_has_no_place_is_an_error() -> None:
    scheduler = small()
    scheduler.something = object()  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="no place in a snapshot"):
        capture(scheduler)
    shared: list[int] = []
    scheduler.something, scheduler.other = shared, shared  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="share a list"):
        capture(scheduler)


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [Entry("Limits", {"max_num_seqs": 1, "max_num_batched_tokens": 1, "max_model_len": 2})],
        [Entry("Popen", {"args": "id"})],
        [Entry("Scheduler", {"kv": {"ref": 5}})],
        [Entry("Scheduler", {"kv": {"call": "id"}})],
        [Entry("Scheduler", {"kv": {"partial": ["Popen", "id"]}})],
        [Entry("Sequence", {})],
        [Entry("BlockPool", {"num_blocks": 3})],
    ],
)
def test_what_is_no_snapshot_is_refused(entries: list[Entry]) -> None:
    with pytest.raises(ValueError, match=r"snapshot|unknown kind"):
        restored(entries)


def test_a_snapshot_of_another_version_is_refused() -> None:
    entries = capture(small())
    pool = next(entry for entry in entries if entry.of == "BlockPool")
    pool.fields["colour"] = "green"
    with pytest.raises(ValueError, match="another version"):
        restored(entries)


# ---------------------------------------------------------------- what cannot be reached


def test_blocks_behind_a_missing_one_are_forgotten() -> None:
    scheduler = small()
    index, pool = scheduler.kv.index, scheduler.kv.pool
    ask(scheduler, 1, list(range(1, 14)))
    step(scheduler)
    assert (len(index), pool.num_kept) == (3, 3)
    first = chain_key(root_key(b""), block_content([1, 2, 3, 4]))
    second = chain_key(first, block_content([5, 6, 7, 8]))
    lost = index._blocks[second][0]
    pool.retain([lost])
    index.forget(lost)
    pool.drop([lost], keep=())

    assert forget_unreachable(scheduler, {root_key(b""), root_key(b"unused")}) == {root_key(b"")}
    assert list(index._blocks) == [first]
    assert (pool.num_kept, pool.num_free) == (1, 20)
    check_invariants(scheduler)


def test_blocks_that_can_be_reached_stay() -> None:
    scheduler = small()
    ask(scheduler, 1, list(range(1, 14)))
    step(scheduler)
    before = as_lines(capture(scheduler))
    forget_unreachable(scheduler, {root_key(b"")})
    assert as_lines(capture(scheduler)) == before


def test_blocks_of_an_unknown_root_are_forgotten() -> None:
    """So the roots must be those of all requests."""
    scheduler = small()
    ask(scheduler, 1, list(range(1, 14)))
    step(scheduler)
    assert forget_unreachable(scheduler, set()) == set()
    assert len(scheduler.kv.index) == 0
    check_invariants(scheduler)
