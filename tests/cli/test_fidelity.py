"""`chairlift bench fidelity` from its flags to its tables, on a tiny real model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chairlift.cli.main import main
from models.writers import tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(max_model_len=2048).write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


def fidelity(model: Path, *flags: str) -> int:
    return main(["bench", "fidelity", str(model), "--max-num-seqs", "4", *flags])


def test_what_is_predicted_stands_beside_what_is_measured(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """How far off it is on a machine that does other things too is not asked here."""
    path = tmp_path / "figures.json"
    flags = ["--parts", "short", "prefix", "--repeats", "1", "--seconds", "1", "--calibration-seconds", "1"]
    assert fidelity(model, *flags, "--num-prompts", "30", "--output-json", str(path)) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("short: 30 requests at ") and "prefix: " in printed
    short, prefix = json.loads(path.read_text())["scenarios"]
    assert short["num_requests"] == 30 and prefix["rate"] > 0
    for scenario in (short, prefix):
        assert len(scenario["lines"]) == 9 and scenario["steps"]["num_steps"] > 0
        for line in scenario["lines"]:
            assert len(line["measured"]) == 1
            assert min(line["measured"][0], line["before"], line["after"], line["predicted"]) > 0.0


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--repeats", "0"], "--repeats"),
        (["--num-prompts", "0"], "--num-prompts"),
        (["--seconds", "nan"], "--seconds"),
        (["--calibration-seconds", "inf"], "--calibration-seconds"),
        (["--journal", "somewhere"], "leave out --journal"),
        (["--output-json", "no-such-folder/x.json"], "no-such-folder"),
    ],
)
def test_what_makes_no_sense(model: Path, flags: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fidelity(model, *flags) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1


def test_there_are_only_these_parts(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fidelity(model, "--parts", "everything")
    assert "chat" in capsys.readouterr().err
