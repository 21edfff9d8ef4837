"""`chairlift replay`: what it prints, and its exit status."""

from __future__ import annotations

from pathlib import Path

import pytest

from chairlift.cli.main import main, parse
from chairlift.cli.options import engine_options
from chairlift.journal import records
from journal.recording import record, segments


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("journal") / "j"
    record(5, 150, path)
    return path


def test_equal_segments(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(name) for name in segments(journal)]
    assert len(names) > 1
    assert main(["replay", *names]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == names
    assert lines[0].startswith(f"{names[0]}: segment 0, ") and all(line.endswith(" steps: equal") for line in lines)


def test_a_difference_is_told_and_the_rest_is_replayed_too(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = segments(journal)[0].read_bytes().splitlines(keepends=True)
    place = next(i for i, line in enumerate(lines) if b'"plan":{' in line)
    begin = records.decode(lines[place])
    assert isinstance(begin, records.Begin) and begin.plan is not None
    lines[place] = lines[place].replace(b'"step":%d' % begin.plan.step, b'"step":77')
    changed = tmp_path / "changed"
    changed.write_bytes(b"".join(lines))
    assert main(["replay", str(changed), str(journal)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].endswith(f": different in line {place + 1}, step 77: the plan (step)")
    assert out[1].startswith("  recorded: step 77; ")
    assert out[2].startswith(f"  replayed: step {begin.plan.step}; ")
    assert out[3].endswith("equal")


def test_an_incomplete_last_line_is_told(journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = tmp_path / "cut"
    cut.write_bytes(segments(journal)[0].read_bytes()[:-5])
    assert main(["replay", str(cut)]) == 0
    assert "the last line is incomplete: equal" in capsys.readouterr().out


def test_files_that_cannot_be_used_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("hello\n")
    (tmp_path / "empty").touch()
    for name in ("missing", "text", "empty", "."):
        assert main(["replay", str(tmp_path / name)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1 and captured.err.startswith(f"chairlift: {tmp_path / name}: ")


def test_flags_of_the_journal() -> None:
    flags = ["--journal", "j", "--journal-digest", "--journal-max-bytes", "1M", "--journal-segments", "2"]
    for command in (["serve"], ["generate", "x"], ["chat"], ["bench", "throughput"]):
        options = engine_options(parse([*command, *flags], {}))
        assert (options.journal, options.journal_digest) == ("j", True)
        assert (options.journal_max_bytes, options.journal_segments) == (1 << 20, 2)
    assert engine_options(parse(["serve"], {"CHAIRLIFT_JOURNAL": "k"})).journal == "k"


def test_a_line_without_an_end_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chairlift.cli.replay.MAX_LINE_BYTES", 1 << 20)
    assert main(["replay", "/dev/zero"]) == 2
    assert capsys.readouterr().err == "chairlift: /dev/zero: line 1: more than 1048576 bytes\n"
