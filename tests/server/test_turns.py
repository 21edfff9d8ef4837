"""Whose request is next: bounded, in turn, and nothing taken is lost."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from chairlift.server.batches.turns import Turns, num_answers


def test_no_more_is_in_flight_than_there_are_slots_and_a_few() -> None:
    async def main() -> None:
        turns, most = Turns(lambda: 8), 0

        async def ask(count: int) -> None:
            nonlocal most
            taken = await turns.take(count)
            most = max(most, turns.num_in_flight)
            await asyncio.sleep(0)
            turns.give(taken)

        await asyncio.gather(*(ask(1 + i % 5) for i in range(50)))
        assert 8 <= most <= 10
        assert turns.num_in_flight == 0

    asyncio.run(main())


def test_who_asks_for_more_than_there_is_has_it_when_nothing_else_is_there() -> None:
    async def main() -> None:
        turns = Turns(lambda: 4)
        first = await turns.take(1)
        large = asyncio.create_task(turns.take(1000))
        behind = asyncio.create_task(turns.take(1))
        await asyncio.sleep(0)
        assert not large.done()
        assert not behind.done(), "or many small ones would keep it out for ever"
        turns.give(first)
        turns.give(await large)
        turns.give(await behind)
        alone = await turns.take(1, alone=True)
        other = asyncio.create_task(turns.take(1))
        await asyncio.sleep(0)
        assert not other.done()
        turns.give(alone)
        turns.give(await other)
        assert turns.num_in_flight == 0

    asyncio.run(main())


def test_who_leaves_while_waiting_or_just_when_it_is_their_turn_takes_nothing() -> None:
    async def main() -> None:
        turns = Turns(lambda: 1)
        held = [await turns.take(1), await turns.take(1)]
        waiting = [asyncio.create_task(turns.take(1)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        turns.give(held[0])
        turns.give(held[1])
        waiting[1].cancel()  # it has its turn, and does not know yet
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [isinstance(one, BaseException) for one in results] == [True, True, False]
        turns.give(1)
        assert turns.num_in_flight == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ({}, 1),
        ({"n": 3}, 3),
        ({"n": 2, "best_of": 5}, 5),
        ({"prompt": ["a", "b"], "n": 2}, 4),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1], [2]]}, 2),
        ({"prompt": []}, 1),
        ({"input": ["a", "b", "c"]}, 3),
        ({"input": [{"role": "user"}] * 3}, 3),
        ({"n": "x"}, 1),
        ({"n": -5}, 1),
        ({"n": 10**30}, 10**30),
    ],
)
def test_how_many_answers_a_body_asks_for(body: dict[str, Any], count: int) -> None:
    assert num_answers(json.dumps(body).encode()) == count


def test_what_is_no_body_asks_for_one() -> None:
    for text in (b"", b"{", b"[]", b'{"prompt": ' + b"[" * 100_000, b'{"input": "\xff"}'):
        assert num_answers(text) == 1
