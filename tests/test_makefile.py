"""The set-up starts with whatever Python there is; what it installs is checked by hand, since it needs an index."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

MAKEFILE = Path(__file__).parent.parent / "Makefile"
MAKE = shutil.which("make") or "make"


def set_up(
    folder: Path, *pythons: str, broken: tuple[str, ...] = (), dry: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run the set-up where only the named interpreters are on the path."""
    programs = folder / "programs"
    programs.mkdir()
    for name in pythons:
        (programs / name).symlink_to(sys.executable)
    for name in broken:
        (programs / name).write_text("#!/bin/sh\nexit 1\n")
        (programs / name).chmod(0o755)
    shutil.copy(MAKEFILE, folder)
    (folder / "pyproject.toml").touch()
    command = [MAKE, "--no-print-directory", *(["--dry-run"] if dry else []), ".venv/base"]
    return subprocess.run(
        command, cwd=folder, env={"PATH": str(programs)}, capture_output=True, text=True, timeout=60, check=False
    )


def test_finds_a_python_under_any_of_its_names(tmp_path: Path) -> None:
    done = set_up(tmp_path, "python3.12", dry=True)
    assert done.returncode == 0
    assert "python3.12 -m venv .venv" in done.stdout


def test_a_python_that_does_not_work_is_passed_over(tmp_path: Path) -> None:
    done = set_up(tmp_path, "python3", broken=("python3.11",), dry=True)
    assert "python3 -m venv .venv" in done.stdout


def test_says_so_without_any_python(tmp_path: Path) -> None:
    done = set_up(tmp_path)
    assert done.returncode != 0
    assert "Python 3.11 or newer is needed" in done.stderr
    assert not (tmp_path / ".venv").exists()
