"""A replay finds what differs, and says what cannot be read."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from chairlift.core.errors import InvalidJournal
from chairlift.core.types import StepPlan
from chairlift.journal import records
from chairlift.journal.replay import Replayed, replay
from journal.recording import record, run, segments

SEED = 3


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """A segment with something in it."""
    folder = tmp_path_factory.mktemp("journal")
    for seed in range(SEED, SEED + 20):
        path = folder / str(seed)
        record(seed, 150, path)
        for name in segments(path):
            found = name.read_bytes().splitlines(keepends=True)
            decoded = [records.decode(line) for line in found]
            ends = [r for r in decoded if isinstance(r, records.Finish) and r.ends]
            if len(added(decoded)) > 3 and len(ends) > 3 and has_plan(decoded[-2]):
                assert replay(found).difference is None
                return found
    raise AssertionError("no world has such a segment")


def added(decoded: list[records.Record]) -> list[int]:
    """Places of requests that were served."""
    joined = {join[1] for r in decoded if isinstance(r, records.Begin) and r.plan for join in r.plan.joins}
    return [i for i, r in enumerate(decoded) if isinstance(r, records.Add) and r.request.id in joined]


def last_line(lines: list[bytes], wanted: Callable[[records.Record], bool]) -> int:
    return max(i for i, line in enumerate(lines) if wanted(records.decode(line)))


def has_plan(record: records.Record) -> bool:
    return isinstance(record, records.Begin) and record.plan is not None


def with_plan(lines: list[bytes], i: int, change: Callable[[records.Plan], records.Plan]) -> Replayed:
    record = records.decode(lines[i])
    assert isinstance(record, records.Begin) and record.plan is not None
    changed = records.encode(records.Begin(record.now, change(record.plan)))
    return replay([*lines[:i], changed, *lines[i + 1 :]])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", 12345),
        ("joins", [(0, 1, 0, 5)]),
        ("leaves", [3]),
        ("blocks", [(0, 77)]),
        ("chunks", [(0, 0, 5, True, False)]),
        ("decodes", [1000]),
        ("fillers", [1]),
        ("chunk_tokens", 99),
        ("chunk_pairs", 99),
        ("context_tokens", 99_999),
        ("shared_context_tokens", 99_999),
    ],
)
def test_a_plan_that_differs_in_anything_is_found(name: str, value: object, lines: list[bytes]) -> None:
    i = last_line(lines, has_plan)
    replayed = with_plan(lines, i, lambda plan: msgspec.structs.replace(plan, **{name: value}))
    difference = replayed.difference
    assert difference is not None and difference.line == i + 1
    assert name in difference.what
    assert difference.recorded != difference.replayed
    assert f"step {difference.step}" in difference.recorded


def test_a_step_that_was_none_is_found(lines: list[bytes]) -> None:
    i = last_line(lines, has_plan)
    record = records.decode(lines[i])
    assert isinstance(record, records.Begin)
    difference = replay([*lines[:i], records.encode(records.Begin(record.now, None)), *lines[i + 1 :]]).difference
    assert difference is not None and difference.recorded == "nothing to compute"


def test_the_first_difference_is_told(lines: list[bytes]) -> None:
    changed = list(lines)
    places = [i for i, line in enumerate(lines) if has_plan(records.decode(line))]
    for i in places:
        record = records.decode(lines[i])
        assert isinstance(record, records.Begin) and record.plan is not None
        changed[i] = records.encode(records.Begin(record.now, msgspec.structs.replace(record.plan, leaves=[9])))
    difference = replay(changed).difference
    assert difference is not None and difference.line == places[0] + 1


def test_an_input_that_is_missing_is_found(lines: list[bytes]) -> None:
    """Each request that was served, each result: without any one of them something differs."""
    decoded = [records.decode(line) for line in lines]
    results = [i for i, r in enumerate(decoded) if isinstance(r, records.Finish)][:-1]
    for i in (*added(decoded), *results[:20]):
        assert replay([*lines[:i], *lines[i + 1 :]]).difference is not None


def test_endings_that_differ_are_found(lines: list[bytes]) -> None:
    i = last_line(lines, lambda record: isinstance(record, records.Finish) and bool(record.ends))
    record = records.decode(lines[i])
    assert isinstance(record, records.Finish)
    number, choice, reason, by_string = record.ends[0]
    ends = [(number + 1000, choice, reason, by_string)]
    changed = records.encode(msgspec.structs.replace(record, ends=ends))
    difference = replay([*lines[:i], changed, *lines[i + 1 :]]).difference
    assert difference is not None and "over" in difference.what


def test_a_scheduler_that_breaks_is_a_difference(lines: list[bytes]) -> None:
    i = last_line(lines, lambda record: isinstance(record, records.Finish))
    difference = replay([*lines[: i + 1], lines[i]]).difference
    assert difference is not None and "RuntimeError" in difference.replayed


@pytest.mark.parametrize(
    "line",
    [
        b"\x00\xff\n",
        b"\n",
        b"{}\n",
        b'{"type":"begin"}\n',
        b'{"type":"shell","command":"id"}\n',
        b'{"type":"abort","id":1',
    ],
)
def test_a_corrupted_line_is_named(line: bytes, lines: list[bytes]) -> None:
    with pytest.raises(InvalidJournal, match=f"^line {len(lines) - 3}: "):
        replay([*lines[:-4], line.removesuffix(b"\n") + b"\n", *lines[-4:]])


def test_an_incomplete_last_line_is_no_error(lines: list[bytes]) -> None:
    replayed = replay([*lines, lines[-1][:-3]])
    assert replayed.truncated and replayed.difference is None
    assert not replay(lines).truncated


def test_no_damage_is_a_traceback(lines: list[bytes]) -> None:
    """Whatever became of a file: it is refused, differs, or does not matter."""
    rng = random.Random(1)
    whole = b"".join(lines)
    num_refused = 0
    for _ in range(200):
        data, at = bytearray(whole), rng.randrange(len(whole))
        match rng.randrange(4):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                del data[at : at + rng.choice([1, 5, 50])]
            case 2:
                data[at:at] = bytes([rng.choice(b'0123456789{}[],":-e.')])
            case 3:
                data[at:at] = data[at : at + rng.choice([1, 9, 200])]
        try:
            replay(bytes(data).splitlines(keepends=True))
        except InvalidJournal:
            num_refused += 1
    assert 50 < num_refused < 200


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"hello\n", b"\x89PNG\r\n\x1a\n", b'{"type":"abort","id":1,"now":0}\n']
)
def test_what_is_no_journal_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidJournal):
        replay(content.splitlines(keepends=True))


def test_a_snapshot_must_be_whole(lines: list[bytes]) -> None:
    first = lines[0]
    with pytest.raises(InvalidJournal, match="snapshot is incomplete"):
        replay(lines[:4])
    with pytest.raises(InvalidJournal, match="snapshot is incomplete"):
        replay([first, *lines[2:]])
    with pytest.raises(InvalidJournal, match="in the middle"):
        replay([*lines, lines[1]])


def test_a_snapshot_of_another_version_names_it(lines: list[bytes]) -> None:
    first = lines[0].replace(b'"version":"', b'"version":"9.')
    assert replay([first, *lines[1:]]).difference is None
    with pytest.raises(InvalidJournal, match=r"written by version 9\."):
        replay([first, lines[1].replace(b'"kv":', b'"cache":'), *lines[2:]])
    with pytest.raises(InvalidJournal, match="format 7"):
        replay([first.replace(b'"format":1', b'"format":7'), *lines[1:]])


def test_every_field_of_a_plan_is_recorded() -> None:
    """A field that is added to `StepPlan` must be compared as well."""
    assert set(StepPlan.__slots__) == {
        "step",
        "joins",
        "leaves",
        "block_slots",
        "block_ids",
        "chunks",
        "decodes",
        "fillers",
        "num_chunk_tokens",
        "num_chunk_pairs",
        "num_context_tokens",
        "num_shared_context_tokens",
    }
    assert len(records.Plan.__struct_fields__) == len(StepPlan.__slots__) - 1


def test_recording_changes_nothing(tmp_path: Path) -> None:
    recorded, unrecorded = record(SEED, 60, tmp_path / "j"), run(SEED, 60)
    assert recorded.finishes == unrecorded.finishes != []
