"""The child that tries grammars: its bounds hold, and what breaks in it breaks nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chairlift.core.structured import StructuredOutputs
from chairlift.grammars.checker import Checker
from chairlift.grammars.child import Bounds, read_frame, tried_apart, write_frame
from chairlift.text.grammars import grammar_text
from grammars.hostile import VICIOUS, cases
from grammars.small import TOKENIZER, VOCABULARY
from server.running import until


def grammar(**form: Any) -> str:
    return grammar_text(StructuredOutputs(**form))


GOOD = grammar(json={"type": "object", "properties": {"a": {"type": "integer"}}})
SLOW = grammar(json={"type": "integer", "multipleOf": 99999989})


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    checker = Checker(VOCABULARY)
    yield checker
    checker.close()


@pytest.fixture
def nobody() -> Iterator[int]:
    """A descriptor that nothing comes from."""
    ours, theirs = os.pipe()
    yield ours
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("name", VICIOUS)
def test_what_is_vicious_is_refused_and_the_next_is_served(checker: Checker, name: str) -> None:
    assert checker.check(VICIOUS[name]).error
    assert checker.check(GOOD).error is None


def test_what_takes_too_long_is_ended_by_the_time_it_takes(nobody: int) -> None:
    begun = time.process_time()
    verdict = tried_apart(TOKENIZER, SLOW, Bounds(cpu_s=0.05), nobody)
    assert verdict is not None
    assert verdict.error == "it takes more than 0.05 seconds to compile"
    assert time.process_time() - begun < 1


MEMORY = """
import os, sys
from chairlift.core.structured import StructuredOutputs
from chairlift.grammars.child import Bounds, tried_apart
from chairlift.text.grammars import grammar_text
from grammars.small import TOKENIZER

nobody, ours = os.pipe()
large = grammar_text(StructuredOutputs(json={"enum": [f"value {i}" for i in range(4000)]}))
for bounds in (Bounds(memory_bytes=1 << 20), Bounds()):
    print(tried_apart(TOKENIZER, large, bounds, nobody).error)
"""


def test_what_takes_too_much_memory_is_ended() -> None:
    """In a process as small as the one that forks them: a large one has room enough in what it freed before."""
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", MEMORY],
        env=os.environ | {"PYTHONPATH": tests},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == ["it needs too much memory, or is nested too deeply", "None"]


def test_a_parent_that_is_gone_ends_a_trial() -> None:
    ours, theirs = os.pipe()
    os.close(theirs)
    try:
        assert tried_apart(TOKENIZER, SLOW, Bounds(), ours) is None
    finally:
        os.close(ours)


def test_the_child_ends_with_its_parent_even_in_the_middle_of_a_trial() -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "chairlift.grammars.child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert child.stdin is not None
    assert child.stdout is not None
    write_frame(child.stdin.fileno(), msgspec.msgpack.encode(VOCABULARY))
    assert read_frame(child.stdout.fileno()) == b""
    write_frame(child.stdin.fileno(), SLOW.encode())
    child.stdin.close()
    assert child.wait(20) == 0
    child.stdout.close()


def test_a_child_that_was_killed_is_started_again(checker: Checker) -> None:
    assert checker.check(GOOD).error is None
    child = checker._child
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    until(lambda: child.poll() is not None)
    assert checker.check(GOOD).error == "it could not be compiled in time"
    assert checker.check(GOOD).error is None


def test_d1_two_hundred_hostile_grammars_each_end_in_a_verdict(checker: Checker) -> None:
    """The short form of D1: nothing breaks the child, nothing takes longer than its bounds."""
    verdicts = [checker.check(case) for case in cases(200, seed=1)]
    assert len(verdicts) == 200
    assert sum(verdict.error is None for verdict in verdicts) > 20
    assert sum(verdict.error is not None for verdict in verdicts) > 20
    assert all(verdict.cpu_s <= 2.5 for verdict in verdicts)
    assert checker.check(GOOD).error is None


@pytest.mark.long
def test_d1_two_thousand_hostile_grammars_each_end_in_a_verdict(checker: Checker) -> None:
    verdicts = [checker.check(case) for case in cases(2000, seed=2)]
    assert len(verdicts) == 2000
    assert checker.check(GOOD).error is None
