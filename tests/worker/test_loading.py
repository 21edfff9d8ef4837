"""How far a model is loaded: a bar on a terminal and nothing elsewhere, lines for a log."""

import io
import os
import pty
import sys
import termios

import pytest

from chairlift.executors.loading import LoadedBytes
from chairlift.worker import loading
from chairlift.worker.loading import LoadingBar, LoadingLines


def test_bytes_of_several_threads_add_up() -> None:
    said: list[tuple[int, int]] = []
    loaded = LoadedBytes(10, lambda done, total: said.append((done, total)))
    for size in (4, 5, 1):
        loaded.add(size)
    assert said == [(4, 10), (9, 10), (10, 10)]
    LoadedBytes(1, None).add(1)


def test_lines_are_few_and_the_last_one_is_always_there() -> None:
    now = [0.0]
    stream = io.StringIO()
    lines = LoadingLines("some-model", stream, lambda: now[0])
    for done in range(5, 101, 5):
        now[0] += 0.25
        lines(done * 1_000_000, 100_000_000)
    said = stream.getvalue().splitlines()
    assert said == [
        "chairlift worker: loading some-model: 40 of 100 MB (40 %) after 2.0 s",
        "chairlift worker: loading some-model: 80 of 100 MB (80 %) after 4.0 s",
        "chairlift worker: loading some-model: 100 of 100 MB (100 %) after 5.0 s",
    ]


def test_a_bar_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "BAR_DELAY_S", 0.0)
    here, there = pty.openpty()
    termios.tcsetwinsize(there, (24, 80))
    os.set_blocking(here, False)
    with os.fdopen(there, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        bar = LoadingBar("some-model")
        bar(1_000_000, 2_000_000)
        bar(2_000_000, 2_000_000)
        shown = os.read(here, 10_000)
    os.close(here)
    assert b"loading some-model" in shown and b"2.00M" in shown
    elsewhere = io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", elsewhere)
        bar = LoadingBar("some-model")
        bar(2_000_000, 2_000_000)
    assert elsewhere.getvalue() == ""


def test_what_is_got_shows_in_a_log_too(capsys: pytest.CaptureFixture[str]) -> None:
    loading.getting("org/name")(3_000_000, 3_000_000)
    assert capsys.readouterr().err.startswith("chairlift: getting org/name: 3 of 3 MB (100 %) after 0.")
