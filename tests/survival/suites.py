"""Bars that tests hold: which tests they are, in small and at the size that counts."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from survival.client import Report

ROOT = Path(__file__).parents[2]
COUNT = re.compile(r"(\d+) (passed|failed|error|errors|skipped|deselected)\b")


@dataclass(frozen=True)
class Suite:
    """Tests by file or id. With the tier `long` those marked so run too, and `programs` after them."""

    tests: tuple[str, ...]
    programs: tuple[tuple[str, ...], ...] = ()
    """Arguments of the interpreter: each has to end with status 0."""
    optimised: bool = False
    """Run as `python -O` besides."""

    def run(self, *, is_long: bool) -> Report:
        """What ran, and whether all of it held; what the tests print is passed on."""
        begun = time.monotonic()
        marks = "not gpu" if is_long else "not gpu and not long"
        pytest = ["-m", "pytest", "-q", "-s", "-m", marks, *self.tests]
        status, output = shown([sys.executable, *pytest])
        counts = {name: int(number) for number, name in COUNT.findall(output)}
        if self.optimised and status == 0:
            status, _ = shown([sys.executable, "-O", "-W", "ignore", *pytest, "-W", IGNORED])
        for program in self.programs if is_long else ():
            status = status or shown([sys.executable, *program])[0]
        return {"met": status == 0, **counts, "seconds": round(time.monotonic() - begun, 1)}


IGNORED = "ignore:assertions not in test modules"


def shown(command: Sequence[str]) -> tuple[int, str]:
    """Run a command in the checkout and pass on what it says: its status, and the last that it said."""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line if line.strip() else last
    return process.returncode, last


SERVER = "tests/server/"
SUITES: dict[str, Suite] = {
    "S8": Suite((SERVER + "test_malformed.py", SERVER + "test_fuzz.py", SERVER + "test_limits.py")),
    "S9": Suite((SERVER + "test_amplification.py", SERVER + "test_pair_limits.py")),
    "S10": Suite((SERVER + "test_slow_connections.py",)),
    "S12": Suite(
        ("tests/test_overload.py", SERVER + "test_overload.py"),
        (("benchmarks/overload.py", "--fake", "--seconds", "1800"),),
    ),
    "S13": Suite(("tests/test_fairness.py",), (("benchmarks/fairness.py",),)),
    "S16": Suite((SERVER + "test_live_poisons.py", SERVER + "test_poison.py")),
    "S17": Suite(("tests/sampling/test_spoiled_rows.py",)),
    "S19": Suite(("tests/text/test_stream.py",)),
    "S20": Suite((SERVER + "test_fuzz.py", SERVER + "test_usage_log.py")),
    "S21": Suite((SERVER + "test_cache_isolation.py",)),
    "S22": Suite((SERVER + "test_authentication.py",)),
    "S23": Suite(("tests/test_source.py", "tests/test_patterns.py", "tests/test_imports.py"), optimised=True),
    "S24": Suite((SERVER + "test_listeners.py",)),
    "S25": Suite(("tests/grammars",), (("benchmarks/hostile_grammars.py", "--requests", "1000"),)),
    "S26": Suite(("tests/models/test_mutants.py", "tests/models/test_malformed.py")),
    "S27": Suite((SERVER + "test_embeddings.py",)),
    "S29": Suite((SERVER + "test_impossible.py",)),
    "S30": Suite((SERVER + "test_watchdog.py",)),
    "S31": Suite(("tests", "-k", "test_src")),
    "S33": Suite(("tests/test_packaging.py",)),
}
