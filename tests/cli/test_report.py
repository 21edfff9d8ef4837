"""The command, from files to files."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest

from chairlift.cli.main import main
from chairlift.report.page import from_html
from journal import recording

SIMULATE = [
    *("simulate", "--num-prompts", "60", "--request-rate", "50", "--prompt", "uniform:20:200"),
    *("--output", "uniform:2:40", "--max-num-seqs", "8", "--plain-cost", "5000:100:0.05:20", "--disable-tqdm"),
]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    recording.record(Random(4).randrange(100), 60, path)
    return recording.segments(path)[0]


def test_a_simulation_writes_a_page_that_agrees_with_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.html"
    assert main([*SIMULATE, "--report", str(path)]) == 0
    table = capsys.readouterr().out
    (run,) = from_html(path.read_text(encoding="utf-8"))
    assert (run.name, run.completed) == ("run", 60)
    line = next(line for line in table.splitlines() if line.startswith("time to first token"))
    ttft = run.latencies["ttft"]
    mean, p50, p90, _, p99 = map(float, line.split()[-5:])
    wanted = [1e3 * value for value in (ttft.mean, ttft.p50, ttft.p90, ttft.p99)]
    assert [mean, p50, p90, p99] == pytest.approx(wanted, abs=0.0061)


def test_a_picture_changes_nothing_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps are not taken together while somebody listens; what comes of them is the same."""
    assert main(SIMULATE) == 0
    alone = capsys.readouterr().out
    assert main([*SIMULATE, "--report", str(tmp_path / "run.html")]) == 0
    assert capsys.readouterr().out == alone


def test_the_same_flags_give_the_same_bytes(tmp_path: Path) -> None:
    pages = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert main([*SIMULATE, "--report", str(folder / "run.html")]) == 0
        pages.append((folder / "run.html").read_bytes())
    assert pages[0] == pages[1]


def test_a_journal_and_a_page_go_side_by_side(
    tmp_path: Path, journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, both = tmp_path / "run.html", tmp_path / "both.html"
    assert main([*SIMULATE, "--report", str(page)]) == 0
    assert main(["report", str(journal), str(page), "--output", str(both)]) == 0
    assert f"wrote {both}" in capsys.readouterr().out
    first, second = from_html(both.read_text(encoding="utf-8"))
    assert first.source.startswith("journal, version")
    assert first.name == journal.name
    assert second == from_html(page.read_text(encoding="utf-8"))[0]


def test_runs_of_one_name_are_told_apart(tmp_path: Path, journal: Path) -> None:
    both = tmp_path / "both.html"
    assert main(["report", str(journal), str(journal), "--output", str(both)]) == 0
    names = [run.name for run in from_html(both.read_text(encoding="utf-8"))]
    assert names == [f"{journal.name} (A)", f"{journal.name} (B)"]


def test_a_window_of_a_journal(tmp_path: Path, journal: Path) -> None:
    path = tmp_path / "part.html"
    assert main(["report", str(journal), "--output", str(path), "--slots-from", "0.05", "--slots-until", "0.1"]) == 0
    engine = from_html(path.read_text(encoding="utf-8"))[0].engines[0]
    assert engine.stays_from == 0.05
    assert all(
        joined < 0.1 and left >= 0.05 for joined, left in zip(engine.stays.joined, engine.stays.left, strict=True)
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("{journal}", "say where"),
        ("{journal} --output {folder}", "it is a folder"),
        ("{journal} --output {folder}/none/out.html", "no such folder"),
        ("{journal} --output {folder}/out.html --slots-from 3 --slots-until 2", "--slots-from"),
        ("{journal} {journal} {journal} --output {folder}/out.html", "two side by side"),
        ("{journal} {folder}/nothing --output {folder}/out.html", "No such file"),
        ("{journal} {folder}/empty --output {folder}/out.html", "neither a journal nor a page"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    tmp_path: Path, journal: Path, capsys: pytest.CaptureFixture[str], arguments: str, complaint: str
) -> None:
    (tmp_path / "empty").touch()
    assert main(["report", *(word.format(folder=tmp_path, journal=journal) for word in arguments.split())]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out.html").exists()


def test_a_damaged_journal_is_named(tmp_path: Path, journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    damaged = tmp_path / "damaged"
    damaged.write_bytes(lines[0] + b'{"type":"what"}\n' + b"".join(lines[1:]))
    assert main(["report", str(damaged), "--output", str(tmp_path / "out.html")]) == 2
    assert f"{damaged}: line 2" in capsys.readouterr().err


def test_without_matplotlib_pictures_say_what_to_install(
    tmp_path: Path, journal: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "chairlift.report.plots", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["report", str(journal), "--png", str(tmp_path / "pictures")]) == 2
    assert "pip install chairlift[plot]" in capsys.readouterr().err
    assert not (tmp_path / "pictures").exists()


def test_pictures_are_files(tmp_path: Path, journal: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra")
    page, folder = tmp_path / "run.html", tmp_path / "pictures"
    assert main([*SIMULATE, "--report", str(page), "--replicas", "2", "--request-rate", "100"]) == 0
    assert main(["report", str(journal), str(page), "--png", str(folder)]) == 0
    names = {path.name for path in folder.iterdir()}
    assert names == {f"{name}.png" for name in ("slots", "queue", "batch", "cache", "latency", "service")}
    for path in folder.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 5000


def test_figures_of_split_engines_are_of_whole_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.html"
    assert main([*SIMULATE, "--split", "1:1", "--report", str(path)]) == 0
    table = capsys.readouterr().out
    (run,) = from_html(path.read_text(encoding="utf-8"))
    assert (run.requests, run.completed, len(run.engines)) == (60, 60, 2)
    for name, key in (("time to first token", "ttft"), ("inter-token latency", "itl"), ("end to end", "e2e")):
        line = next(line for line in table.splitlines() if line.startswith(name))
        found = run.latencies[key]
        wanted = [1e3 * value for value in (found.mean, found.p50, found.p90, found.p99)]
        mean, p50, p90, _, p99 = map(float, line.split()[-5:])
        assert [mean, p50, p90, p99] == pytest.approx(wanted, abs=0.0061)
    assert sum(len(engine.answers.id) for engine in run.engines) > 60
