"""The lesson's picture, drawn on a figure that writes down what it was told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chairlift.cli.main import main
from chairlift.report.lesson import draw_lesson, labels


def row(batching: str, tokens: float, p99: float, cap: int | None = None, rate: float = 40.0) -> dict[str, Any]:
    return {
        "rate": rate,
        "batching": batching,
        "tokens_per_s": tokens,
        "e2e_p50_s": p99 / 2,
        "e2e_p99_s": p99,
        "max_concurrent": cap,
    }


def test_points_that_lie_on_each_other_share_a_label() -> None:
    rows = [row("static", 1300, 264), row("dynamic", 1322, 259), row("continuous", 5710, 5.7)]
    assert labels(rows, (6000.0, 300.0)) == [(1300, 264, "static, dynamic"), (5710, 5.7, "continuous")]
    rows = [row("continuous", 1641, 193, 8), row("continuous", 5710, 5.7, 48), row("continuous", 5710, 5.7, 64)]
    assert [text for _, _, text in labels(rows, (6000.0, 200.0))] == ["8", "48, 64"]


def test_the_lesson_is_drawn(tmp_path: Path) -> None:
    figure = pytest.importorskip("matplotlib.figure", reason="pictures need the extra").Figure()
    path = tmp_path / "lesson.png"
    rows = [row("static", 1300, 264), row("continuous", 5710, 5.7), row("static", 1200, 17, rate=8.0)]
    draw_lesson(rows, figure, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    left, right = figure.axes
    assert [left.get_title(), right.get_title()] == ["8 requests per second", "40 requests per second"]
    points = [tuple(point) for collection in right.collections for point in collection.get_offsets()]
    assert points == [(1300, 132), (5710, 2.85), (1300, 264), (5710, 5.7)]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--preset", "lesson", "--plot", "{folder}/lesson.txt"], ".png, .svg, .pdf"),
        (["--preset", "slots", "--plot", "{folder}/lesson.png"], "--plot draws the lesson"),
        (["--plot", "{folder}/lesson.png"], "--plot draws the lesson"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], complaint: str
) -> None:
    assert main(["simulate", *(flag.format(folder=tmp_path) for flag in flags)]) == 2
    assert complaint in capsys.readouterr().err
