"""The same requests under every setting give the same tokens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from core import workloads
from core.workloads import check_seed


@pytest.mark.parametrize("tenth", range(10))
def test_no_setting_changes_a_token(tenth: int) -> None:
    for seed in range(tenth, 40, 10):
        check_seed(seed)


def test_no_setting_changes_a_token_without_asserts() -> None:
    """Under `python -O`, in a process of its own."""
    command = [sys.executable, "-O", str(Path(workloads.__file__)), "--first", "100", "--seeds", "12"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{seed} {check_seed(seed)}" for seed in range(100, 112)]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(200))
def test_no_setting_changes_a_token_long(seed: int) -> None:
    check_seed(seed)
