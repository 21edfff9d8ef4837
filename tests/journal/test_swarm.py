"""Random worlds, recorded: every segment alone replays to equal plans, and ends where the next begins."""

from __future__ import annotations

import re
from base64 import b64decode
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from chairlift.core.prefix import chain_key, root_key
from chairlift.core.snapshot import capture, forget_unreachable
from chairlift.core.types import FinishReason
from chairlift.journal import records
from chairlift.journal.replay import Replayed
from journal.recording import World, record, replay_file, segments


def snapshot_lines(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        segment = records.decode(next(file))
        assert isinstance(segment, records.Segment)
        return [comparable(next(file)) for _ in range(segment.num_objects)]


def comparable(line: bytes) -> bytes:
    """Without the texts of errors, which in a digest are names."""
    return re.sub(rb'("doom":{"tuple":[^}]*},)"[^"]*"', rb'\1""', line)


def roots_in(path: Path) -> set[bytes]:
    """Roots of all prefix keys of a segment."""
    roots = set()
    for line in map(records.decode, path.read_bytes().splitlines()):
        if isinstance(line, records.Add):
            roots.add(root_key(line.request.salt))
        elif isinstance(line, records.Object) and line.of == "PrefixIndex":
            entries = [(b64decode(parent), b64decode(content)) for _, parent, content in line.fields["entries"]]
            roots |= {parent for parent, _ in entries} - {chain_key(*entry) for entry in entries}
        elif isinstance(line, records.Object) and line.of == "Request":
            roots.add(root_key(b64decode(line.fields["request"]["salt"])))
    return roots


def final_lines(replayed: Replayed, path: Path) -> list[bytes]:
    """What the snapshot after a segment must be."""
    if replayed.segment.digest:
        forget_unreachable(replayed.scheduler, roots_in(path))
    lines = [records.encode(records.Object(entry.of, entry.fields)) for entry in capture(replayed.scheduler)]
    return [comparable(line) for line in lines]


def check_world(seed: int, num_steps: int, path: Path, *, digest: bool) -> tuple[World, list[Replayed]]:
    world = record(seed, num_steps, path, digest=digest)
    replays = []
    final: list[bytes] | None = None
    for name in segments(path):
        assert final in (None, snapshot_lines(name)), f"seed {seed}: the state before {name.name}"
        replayed = replay_file(name)
        assert replayed.difference is None, f"seed {seed}, {name.name}: {replayed.difference}"
        assert not replayed.truncated and not replayed.segment.gap
        replays.append(replayed)
        if name != path:
            final = final_lines(replayed, name)
    return world, replays


def check_worlds(seeds: Iterable[int], num_steps: int, path: Path, *, digest: bool) -> list[World]:
    worlds, num_segments = [], 0
    for seed in seeds:
        folder = path / str(seed)
        folder.mkdir()
        world, replays = check_world(seed, num_steps, folder / "journal", digest=digest)
        assert sum(r.num_steps for r in replays) == world.executor.num_steps
        worlds.append(world)
        num_segments += len(replays)
    assert num_segments > 2 * len(worlds)
    return worlds


@pytest.mark.parametrize("digest", [False, True])
@pytest.mark.parametrize("fifth", range(5))
def test_every_segment_of_random_worlds_replays(fifth: int, digest: bool, tmp_path: Path) -> None:
    check_worlds(range(fifth, 20, 5), 120, tmp_path, digest=digest)


@pytest.mark.long
@pytest.mark.parametrize("digest", [False, True])
def test_every_segment_of_random_worlds_replays_long(digest: bool, tmp_path: Path) -> None:
    check_worlds(range(1000, 1200), 500, tmp_path, digest=digest)


def test_the_worlds_reach_what_a_replay_may_miss(tmp_path: Path) -> None:
    """Endings of every kind, faults, preemptions, choices and limit changes are recorded somewhere."""
    worlds = check_worlds(range(100, 112), 150, tmp_path, digest=False)
    finishes = [f for w in worlds for f in w.finishes]
    reasons = Counter(f.reason for f in finishes)
    assert all(reasons[reason] for reason in FinishReason)
    assert any(isinstance(f.stop_reason, str) for f in finishes)
    assert sum(f.num_preemptions for f in finishes) > 10
    assert any(f.choice for f in finishes)
    kinds: Counter[type] = Counter()
    for name in (name for seed in range(100, 112) for name in segments(tmp_path / str(seed) / "journal")):
        kinds.update(type(records.decode(line)) for line in name.read_bytes().splitlines())
    assert all(kinds[kind] > 5 for kind in (records.Add, records.Abort, records.Limits, records.Close, records.Fail))
