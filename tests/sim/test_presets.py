"""The lessons' figures, to the last digit that their programs print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chairlift.cli.main import main
from chairlift.sim.presets import Lesson, LessonTraffic, SlotsTraffic, lesson_line, slot_lines

TABLE = """\
3000 requests, prompt 1000, output median 92, mean 148, max 2000; batch slots 64

arrivals 8/s (demand 1185 tok/s)
policy        tok/s  slot use  TTFT p50  TTFT p99  e2e p50  e2e p99
static         1188       15%     5.59s    16.03s     6.6s    17.6s
dynamic        1186       12%     3.48s    14.04s     4.5s    15.5s
continuous     1200        9%     0.01s     0.01s     0.4s     4.4s

arrivals 40/s (demand 5927 tok/s)
policy        tok/s  slot use  TTFT p50  TTFT p99  e2e p50  e2e p99
static         1299       15%   124.53s   263.75s   125.2s   264.5s
dynamic        1322       15%   122.84s   258.31s   123.6s   258.9s
continuous     5710       54%     0.01s     0.01s     0.6s     5.7s
"""
SLOTS = """\
1 {3: 0}
2 {3: 0, 2: 1}
3 {3: 0, 2: 1, 1: 2}
4 {3: 0, 2: 1, 1: 2, 0: 3}
5 {2: 1, 1: 2, 0: 3}
6 {1: 2, 0: 3, 3: 4}
7 {0: 3, 3: 4, 2: 5}
8 {3: 4, 2: 5, 1: 6}
9 {3: 4, 2: 5, 1: 6, 0: 7}
10 {2: 5, 1: 6, 0: 7}
11 {1: 6, 0: 7}
12 {0: 7}
13 {}
"""


def test_the_lesson(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--preset", "lesson"]) == 0
    assert capsys.readouterr().out == TABLE


def test_the_slots(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--preset", "slots"]) == 0
    assert capsys.readouterr().out == SLOTS


def test_more_requests_than_slots_take_turns() -> None:
    lines = slot_lines(SlotsTraffic(num_requests=2, num_output=3, max_num_seqs=1))
    assert lines == ["1 {0: 0}", "2 {0: 0}", "3 {}", "4 {0: 1}", "5 {0: 1}", "6 {}"]


def test_exercise_1_more_slots(capsys: pytest.CaptureFixture[str]) -> None:
    """As the lesson's program prints it with MAX_BATCH = 256."""
    assert main(["simulate", "--preset", "lesson", "--max-num-seqs", "256", "--request-rate", "40"]) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "static         1604       10%    94.34s   192.94s    97.6s   195.1s",
        "dynamic        1606        9%    94.42s   194.71s    96.4s   195.8s",
        "continuous     5710       14%     0.01s     0.01s     0.6s     5.7s",
    ]


def test_exercise_2_answers_of_one_length(capsys: pytest.CaptureFixture[str]) -> None:
    """As the lesson's program prints it with n = 148 in the place of the drawn length."""
    assert main(["simulate", "--preset", "lesson", "--output", "148", "--request-rate", "40"]) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "static         5999      100%     0.77s     1.73s     1.8s     2.8s",
        "dynamic        5967       56%     0.45s     0.91s     1.3s     1.8s",
        "continuous     6020       56%     0.01s     0.01s     0.9s     1.0s",
    ]


def test_exercise_3_fewer_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the lesson's program prints it with a cap below MAX_BATCH in the continuous policy."""
    path = tmp_path / "rows.json"
    flags = ["--request-rate", "40", "--max-concurrent", "16,48", "--output-json", str(path)]
    assert main(["simulate", "--preset", "lesson", *flags]) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "at most       tok/s  slot use  TTFT p50  TTFT p99  e2e p50  e2e p99",
        "16             3022       25%    35.85s    69.56s    36.5s    70.2s",
        "48             5710       54%     0.01s     0.13s     0.6s     5.7s",
    ]
    rows = json.loads(path.read_text())
    assert [row["max_concurrent"] for row in rows] == [16, 48]
    assert rows[0]["e2e_p99_s"] == pytest.approx(70.2, abs=0.05)


def test_fewer_requests_and_another_seed_are_another_table() -> None:
    lines = [
        lesson_line(Lesson(traffic=LessonTraffic(num_requests=200, seed=seed)).run(40.0, "continuous"))
        for seed in (7, 7, 8)
    ]
    assert lines[0] == lines[1] != lines[2]


@pytest.mark.parametrize(
    "flags",
    [
        ["--max-concurrent", "0"],
        ["--max-concurrent", "x"],
        ["--output", "uniform:1:9"],
        ["--journal", "x"],
        ["--tenant", "a"],
    ],
)
def test_what_the_lesson_does_not_take(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--preset", "lesson", *flags]) == 2
    assert capsys.readouterr().err.startswith("chairlift: ")
