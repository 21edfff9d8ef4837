"""Requests that come with keys for the blocks of their prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.core.scheduler import Scheduler
from chairlift.core.snapshot import Entry, capture, restore
from chairlift.core.types import BlockKeys, CacheShape, Finish, Limits, Request, SamplingParams, StepResult
from fakes import check
from invariants import check_index, check_invariants

SIZE = 4
PROMPT = list(range(1, 14))


def scheduler(*, takes_block_keys: bool = True, num_blocks: int = 40) -> Scheduler:
    return Scheduler(
        Limits(4, 64, 100), CacheShape(num_blocks, SIZE), vocab_size=100, takes_block_keys=takes_block_keys
    )


def ask(number: int, keys: Sequence[int] | None, prompt: Sequence[int] = PROMPT, salt: bytes = b"") -> Request:
    given = None if keys is None else BlockKeys(SIZE, keys)
    return Request(number, prompt, SamplingParams(max_tokens=9, ignore_eos=True), salt=salt, block_keys=given)


def serve(engine: Scheduler, *requests: Request) -> list[Finish]:
    """All of them to their ends, one after the other."""
    finishes = []
    for request in requests:
        engine.add(request)
        while (plan := engine.schedule(0.0)) is not None:
            finishes += engine.commit(StepResult([50] * plan.num_samples), 0.0).finishes
            check_invariants(engine)
    check_index(engine)
    return finishes


def cached(engine: Scheduler, request: Request) -> int:
    return serve(engine, request)[0].num_cached_tokens


def test_a_prompt_is_found_by_its_keys_and_its_tokens_are_not_read() -> None:
    engine = scheduler()
    serve(engine, ask(1, [7, 8, 9]))
    assert cached(engine, ask(2, [7, 8, 9], [0] * 13)) == 12
    assert cached(engine, ask(3, [7, 8, 10], [0] * 13)) == 8
    assert cached(engine, ask(4, [6, 8, 9], [0] * 13)) == 0


def test_keys_and_tokens_are_never_taken_for_each_other() -> None:
    engine = scheduler()
    serve(engine, ask(1, None))
    assert cached(engine, ask(2, [7, 8, 9])) == 0
    assert (cached(engine, ask(3, None)), cached(engine, ask(4, [7, 8, 9]))) == (12, 12)


def test_blocks_after_the_last_key_go_on_from_it() -> None:
    engine = scheduler()
    serve(engine, ask(1, [7]))
    assert cached(engine, ask(2, [7])) == 12
    assert cached(engine, ask(3, [8])) == 0
    answered = [*PROMPT, *[50] * 8]
    assert cached(engine, ask(4, [7], answered)) == 20
    assert cached(engine, ask(5, [7], [*PROMPT, *[51] * 8])) == 12


def test_keys_find_nothing_under_another_salt() -> None:
    engine = scheduler()
    for number, salt in enumerate((b"", b"a", b"b")):
        check(cached(engine, ask(number, [7, 8, 9], salt=salt)) == 0, "one found what another tenant computed")
        check(cached(engine, ask(number, [7, 8, 9], salt=salt)) == 12, "one did not find its own")


def test_a_key_that_was_given_after_another_beginning_is_a_miss() -> None:
    """The source contradicts itself: what it says is the same cannot be."""
    engine = scheduler()
    serve(engine, ask(1, [7, 8, 9]), ask(2, [1, 2, 3]))
    check(cached(engine, ask(3, [1, 8, 9])) == 4, "a block was found after another beginning than its own")
    check(cached(engine, ask(4, [8, 9])) == 0, "a block was found that was not at the beginning")


def test_choices_share_what_came_with_keys() -> None:
    engine = scheduler()
    finishes = serve(engine, replace(ask(1, [7, 8, 9], PROMPT[:12]), n=3))
    assert len(finishes) == 3
    assert cached(engine, ask(2, [7, 8, 9], PROMPT[:12])) == 8


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (BlockKeys(8, [1]), "blocks of 8 tokens; this engine has blocks of 4"),
        (BlockKeys(SIZE, [1, 2, 3, 4]), "too many for a prompt of 13"),
        (BlockKeys(SIZE, [-1]), "from 0 to below 2\\^64"),
        (BlockKeys(SIZE, [1 << 64]), "from 0 to below 2\\^64"),
        (BlockKeys(SIZE, ["a"]), "from 0 to below 2\\^64"),  # type: ignore[list-item]
    ],
)
def test_keys_that_an_engine_cannot_go_by_are_refused(given: BlockKeys, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        scheduler().add(replace(ask(1, None), block_keys=given))


def test_an_engine_that_was_not_made_for_keys_refuses_them() -> None:
    """As every one with a device: whatever a caller says, blocks are found by their tokens."""
    with pytest.raises(InvalidRequest, match="no keys"):
        scheduler(takes_block_keys=False).add(ask(1, [7, 8, 9]))


@pytest.mark.parametrize("salt", [b"", b"a"])
def test_a_scheduler_of_keyed_requests_comes_back_from_its_snapshot(salt: bytes) -> None:
    engine = scheduler()
    serve(engine, ask(1, [7, 8, 9], salt=salt), ask(2, [7, 8], salt=salt))
    engine.add(ask(3, [7, 8, (1 << 64) - 1], salt=salt))
    engine.add(ask(4, [1, 2], salt=salt))
    plan = engine.schedule(1.0)
    assert plan is not None
    engine.commit(StepResult([50] * plan.num_samples), 2.0)
    entries = capture(engine)
    again = restore([through_json(entry) for entry in entries], lambda request, choice: None)
    check_invariants(again)
    check_index(again)
    assert [e.of for e in capture(again)] == [e.of for e in entries]
    chains = [[s.chain for ss in one._live.values() for s in ss] for one in (again, engine)]
    assert chains[0] == chains[1] and again.kv.index._blocks == engine.kv.index._blocks
    for one in (again, engine):
        one.abort(3, 3.0)
        one.abort(4, 3.0)
    finishes = [serve(one, ask(5, [7, 8, (1 << 64) - 1], salt=salt)) for one in (again, engine)]
    assert finishes[0] == finishes[1] and finishes[0][-1].num_cached_tokens == 12


def through_json(entry: Entry) -> Entry:
    """As a journal keeps it."""
    read = msgspec.json.decode(msgspec.json.encode(entry.fields))
    return Entry(entry.of, {"request": msgspec.convert(read["request"], Request)} if entry.of == "Request" else read)
