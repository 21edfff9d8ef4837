"""Random engines under random load and faults: see `swarm.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from chairlift.core.types import FinishReason, PreemptReason, WaitReason
from core import swarm
from core.swarm import run


@pytest.mark.parametrize("tenth", range(10))
def test_swarm(tenth: int, swarm_seeds: int) -> None:
    for seed in range(tenth, swarm_seeds, 10):
        run(seed, 1000)


@pytest.mark.long
def test_swarm_long() -> None:
    for seed in range(1000, 11_000):
        run(seed, 1000)


def digests(num_seeds: int, *flags: str, hash_seed: int) -> list[str]:
    """What the worlds of the first seeds come to in a process of their own."""
    command = [sys.executable, *flags, str(Path(swarm.__file__)), "--seeds", str(num_seeds)]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def same_everywhere(num_seeds: int) -> None:
    here = [f"{seed} {run(seed, 150).digest}" for seed in range(num_seeds)]
    assert digests(num_seeds, "-O", hash_seed=1) == here
    assert digests(num_seeds, hash_seed=2) == here
    assert len(set(here)) == num_seeds


def test_a_seed_decides_everything() -> None:
    """Whatever the process, the order of hashes, and whether `assert` is there."""
    same_everywhere(50)


@pytest.mark.long
def test_a_seed_decides_everything_long() -> None:
    same_everywhere(1000)


def test_the_swarm_reaches_what_it_is_for() -> None:
    """Preemptions, prefix hits, choices, errors, fillers and every kind of wait do happen, or nothing is proved."""
    worlds = [run(seed, 300) for seed in range(60)]
    stats = [w.scheduler.stats() for w in worlds]
    assert sum(s.num_preemptions for s in stats) > 100
    assert sum(s.prefix_hits for s in stats) > 1000
    finishes = [f for w in worlds for f in w.finishes.values()]
    reasons = [f.reason for f in finishes]
    assert all(reasons.count(reason) > 20 for reason in FinishReason)
    assert sum(1 for f in finishes if f.choice and f.reason is FinishReason.STOP) > 10
    assert sum(1 for f in finishes if f.stop_reason == "stop") > 20
    errors = {str(f.error).split(":")[0].rstrip("0123456789") for f in finishes}
    assert {"ttft deadline", "e2e deadline", "not a number", "the sampled token is outside the vocabulary"} < errors
    preemptions = Counter(reason for f in finishes for _, reason in f.decisions.preemptions)
    assert all(preemptions[reason] > 20 for reason in PreemptReason)
    assert all(sum(w.reasons[reason] for w in worlds) > 20 for reason in WaitReason)
    assert sum(w.num_filler_rows for w in worlds) > 300
    made_room = sum(w.door.num_priority_steps for w in worlds)
    assert made_room > 20 and sum(w.door.num_in_vain for w in worlds) <= made_room / 10
    assert sum(w.door.num_shared_steps for w in worlds) > 500
    assert sum(f.decisions.recomputed_tokens for f in finishes) > 1000
    assert sum(f.decisions.passed for f in finishes) > 20
    assert sum(1 for w in worlds for scores in w.scored.values() if scores) > 20
