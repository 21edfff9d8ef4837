"""Caps from the command line, from a file and from the environment."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from chairlift.cli.admission_flags import CAPS, add_admission_flags, cap, caps
from chairlift.cli.config import environment_defaults, file_defaults
from chairlift.cli.main import main
from chairlift.core.admission import DEFAULT_MAX_NUM_QUEUED_REQS, AdmissionLimits
from chairlift.server import run as server_run
from chairlift.server.options import DEFAULT_ADMISSION, ServerOptions


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    add_admission_flags(made)
    return made


def test_without_flags_the_queue_has_a_bound() -> None:
    arguments = parser().parse_args([])
    assert AdmissionLimits(**caps(arguments)) == DEFAULT_ADMISSION == ServerOptions().admission
    assert DEFAULT_ADMISSION.max_num_queued_reqs == DEFAULT_MAX_NUM_QUEUED_REQS
    assert arguments.overload_status == 429


def test_every_cap_has_a_flag() -> None:
    argv = [part for i, name in enumerate(CAPS) for part in ("--" + name.replace("_", "-"), str(i + 1))]
    limits = AdmissionLimits(**caps(parser().parse_args(argv)))
    assert [getattr(limits, name) for name in AdmissionLimits.__slots__] == [1, 2, 3, 4, 5]


def test_a_cap_may_be_none_wherever_it_comes_from(tmp_path: Path) -> None:
    assert parser().parse_args(["--max-num-queued-reqs", "none"]).max_num_queued_reqs is None
    file = tmp_path / "config.yaml"
    file.write_text("max-num-queued-reqs: none\nmax-num-queued-tokens: 2k\n")
    assert file_defaults(parser(), file) == {"max_num_queued_reqs": None, "max_num_queued_tokens": 2000}
    environment = {"CHAIRLIFT_MAX_NUM_REQS_PER_PRINCIPAL": "None"}
    assert environment_defaults(parser(), environment) == {"max_num_reqs_per_principal": None}


@pytest.mark.parametrize("text", ["", "-1", "many", "1.5"])
def test_a_cap_is_a_count_or_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        cap(text)


def test_the_flags_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    def serve(*arguments: Any) -> int:
        told.extend(arguments)
        return 0

    monkeypatch.setattr(server_run, "serve", serve)
    argv = ["serve", "m", "--max-num-queued-reqs", "7", "--overload-status", "503", "--scheduling-policy", "fair"]
    assert main(argv) == 0
    options: ServerOptions = told[0]
    assert options.admission == AdmissionLimits(max_num_queued_reqs=7)
    assert (options.overload_status, options.scheduling_policy) == (503, "fair")


def test_a_server_that_lets_nobody_in_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "m", "--max-num-reqs-per-principal", "0"]) != 0
    assert "max_num_reqs_per_principal" in capsys.readouterr().err
