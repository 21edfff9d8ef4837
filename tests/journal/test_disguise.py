"""Digests: what is equal stays equal, and nothing can be read."""

from __future__ import annotations

import json
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.engine import Engine
from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.snapshot import capture
from chairlift.core.types import CacheShape, Limits, Request, SamplingParams
from chairlift.journal.disguise import Disguise
from fakes import VOCAB_SIZE, FakeExecutor, expected_answer
from journal.recording import journal_at, replay_file, segments

BLOCK_SIZES = st.sampled_from([1, 2, 3, 8, 11, 16, 32])


def disguise(block_size: int = 4, secret: bytes = b"s" * 32) -> Disguise:
    """One that has seen the snapshot of an idle scheduler."""
    scheduler = Scheduler(Limits(4, 64, 200), CacheShape(50, block_size), vocab_size=VOCAB_SIZE)
    made = Disguise(secret)
    made.entries(capture(scheduler))
    return made


def request(prompt: list[int], number: int = 1, salt: bytes = b"", **params: object) -> Request:
    return Request(number, prompt, SamplingParams(**params), salt=salt)  # type: ignore[arg-type]


def blocks(tokens: list[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(tokens[i : i + size]) for i in range(0, len(tokens) - size + 1, size)]


TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=40)
"""Few different ones, so that beginnings are often common."""


@given(TOKENS, TOKENS, BLOCK_SIZES, st.booleans())
def test_blocks_are_equal_exactly_as_far_as_their_beginnings_are(
    one: list[int], other: list[int], size: int, same_salt: bool
) -> None:
    made = disguise(size)
    hidden_one = made.request(request(one, 1, b"a")).prompt
    hidden_other = made.request(request(other, 2, b"a" if same_salt else b"b")).prompt
    assert (len(hidden_one), len(hidden_other)) == (len(one), len(other))
    real = list(zip(blocks(one, size), blocks(other, size), strict=False))
    hidden = list(zip(blocks(list(hidden_one), size), blocks(list(hidden_other), size), strict=False))
    for i, (a, b) in enumerate(hidden):
        assert (a == b) == (same_salt and all(x == y for x, y in real[: i + 1]))


@given(TOKENS, st.data(), BLOCK_SIZES)
def test_an_answer_goes_on_where_its_prompt_ends(tokens: list[int], data: st.DataObject, size: int) -> None:
    """A prompt that holds an earlier answer finds its blocks."""
    cut = data.draw(st.integers(1, len(tokens)))
    made = disguise(size)
    whole = made.request(request(tokens, 1)).prompt
    start = made.request(request(tokens[:cut], 2))
    row = made._sequences[2, 0]
    answer = [made._follow(row, [token])[0] for token in tokens[cut:]]
    assert blocks([*start.prompt, *answer], size) == blocks(list(whole), size)


def test_no_prompt_token_stays_what_it_is() -> None:
    hidden = disguise().request(request(list(range(100, 140))))
    assert not set(hidden.prompt) & set(range(1, VOCAB_SIZE))


def test_equal_tokens_elsewhere_have_nothing_in_common() -> None:
    hidden = disguise(1).request(request([5, 5, 5, 5]))
    assert len(set(hidden.prompt)) == 4


def test_another_secret_gives_other_tokens() -> None:
    one, other = (disguise(secret=secret).request(request([1, 2, 3, 4])) for secret in (b"a" * 32, b"b" * 32))
    assert one.prompt != other.prompt and one.salt != other.salt
    assert disguise(secret=b"a" * 32).name("alice") != disguise(secret=b"b" * 32).name("alice")


def test_tokens_that_end_an_answer_do_so_still() -> None:
    """In every answer alike, whatever stands before; in a prompt they are tokens like any other."""
    made = disguise()
    asked = Request(1, [1, 9, 9], SamplingParams(stop_token_ids=(7,)), eos_token_ids=(9,))
    hidden = made.request(asked)
    row = made._sequences[1, 0]
    assert row.ends == {7, 9}
    assert hidden.eos_token_ids == (made._end_id(9),) and hidden.params.stop_token_ids == (made._end_id(7),)
    assert made._end_id(9) not in hidden.prompt and made._end_id(9) != made._end_id(7)


def test_names_are_hidden_and_told_apart() -> None:
    made = disguise()
    assert made.name("") == ""
    assert made.name("alice") == made.name("alice") != made.name("bob")


# ---------------------------------------------------------------- the file

MARKERS = ("PRINCIPALMARKER", "TENANTMARKER", "STOPMARKER", "SALTMARKER")
PROMPTS = [[700 + 3 * i + j for j in range(20)] for i in range(30)]


def numbers_in(value: Any) -> Iterator[int]:
    """Integers of a line, also those that the prefix index holds as bytes."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from numbers_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from numbers_in(item)
        if value.get("of") == "PrefixIndex":
            for _, _, content in value["fields"]["entries"]:
                yield from array("I", b64decode(content))


@pytest.mark.parametrize("digest", [False, True])
def test_a_file_shows_nothing_of_what_was_asked_and_answered(digest: bool, tmp_path: Path) -> None:
    """Nor in snapshots, whose index, queue and counters of fair shares know it too. A plain journal shows it all."""
    shape = CacheShape(60, 4)
    scheduler = Scheduler(
        Limits(4, 40, 100),
        shape,
        vocab_size=VOCAB_SIZE,
        policy=Policy(scheduling_policy="fair", weights={"PRINCIPALMARKER": 2.0}),
    )
    with closing(journal_at(tmp_path / "journal", digest=digest)) as journal:
        journal.attach(scheduler)
        engine = Engine(scheduler, FakeExecutor(shape), recorder=journal)
        requests = [
            Request(
                number,
                prompt,
                SamplingParams(
                    max_tokens=12,
                    stop=("STOPMARKER",),
                    logit_bias=((777, 1.5),),
                    seed=123454321,
                    allowed_token_ids=None,
                ),
                principal="PRINCIPALMARKER",
                tenant=f"TENANTMARKER{number % 3}",
                salt=b"SALTMARKER",
            )
            for number, prompt in enumerate(PROMPTS)
        ]
        now = 0.0
        for asked in requests:
            engine.add(asked)
            now += 0.01
            if engine.begin(now):
                engine.finish(now)
        while engine.begin(now):
            engine.finish(now)
    files = segments(tmp_path / "journal")
    assert len(files) > 2
    text = b"".join(name.read_bytes() for name in files).decode()
    tokens = {token for prompt in PROMPTS for token in prompt}
    tokens |= {token for asked in requests for token in expected_answer(asked, 0, 100) if token > 200}
    # Small numbers are ids, counts and places; of the tokens here none is as small as those.
    shown = tokens & {number for line in text.splitlines() for number in numbers_in(json.loads(line))}
    found = [marker for marker in MARKERS if marker in text]
    if digest:
        assert not found and "123454321" not in text and b64encode(b"SALTMARKER").decode() not in text
        assert '"logit_bias":[[' not in text
        assert not shown
    else:
        assert len(found) == 3, "a salt is written as base 64"
        assert shown == tokens
    assert all(replay_file(name).difference is None for name in files)
