from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from chairlift.bench.exchange import Exchange
from chairlift.bench.load import Load
from chairlift.bench.report import Wanted, make_report
from chairlift.bench.server_process import served
from chairlift.bench.sweep import PERCENTS, Point, draw, settings, to_table
from chairlift.core.errors import ChairliftError


def point(seqs: str, rate: float, seconds: float, *, stream: bool = True) -> Point:
    """Two answers of two tokens, `seconds` to each token."""
    deliveries = [seconds, 2 * seconds] if stream else []
    exchanges = [Exchange(0.0, deliveries, 2 * seconds, num_output_tokens=2) for _ in range(2)]
    load = Load(num_requests=2, begun=0.0, duration_s=4.0, exchanges=exchanges)
    return Point({"--max-num-seqs": seqs}, rate, make_report(load, Wanted(percentiles=PERCENTS)))


def test_settings_are_every_combination() -> None:
    assert settings({}) == [{}]
    assert settings({"--a": ["1", "2"], "--b": ["x", "y"]}) == [
        {"--a": "1", "--b": "x"},
        {"--a": "1", "--b": "y"},
        {"--a": "2", "--b": "x"},
        {"--a": "2", "--b": "y"},
    ]


def test_table() -> None:
    table = to_table([point("16", 2.5, 0.5), point("256", float("inf"), 0.25, stream=False)])
    assert table.startswith("max-num-seqs  rate  req/s  tok/s  TTFT p50  TTFT p99  ITL p50")
    first, second = ([cell.strip() for cell in line.split("  ") if cell.strip()] for line in table.split("\n")[1:])
    assert first == ["16", "2.5", "0.50", "1.0", "500.0", "500.0", "500.0", "500.0", "1000.0", "1000.0", "0"]
    assert second == ["256", "inf", "0.50", "1.0", "-", "-", "-", "-", "500.0", "500.0", "0"]
    assert len({len(line) for line in table.split("\n")}) == 1


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plot(tmp_path: Path, suffix: str) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    path = tmp_path / f"plot.{suffix}"
    draw([point("16", 2.0, 0.5), point("64", 2.0, 0.25, stream=False)], figures.Figure(), path)
    assert path.stat().st_size > 5000


def test_plot_shows_each_latency_of_each_point(tmp_path: Path) -> None:
    """With a figure that takes notes, since matplotlib is an extra."""

    class Axis:
        def __init__(self) -> None:
            self.lines: list[list[float]] = []
            self.title = ""

        def plot(self, places: list[int], values: list[float], **style: str) -> None:
            self.lines.append(values)

        def bar(self, places: list[int], values: list[float]) -> None:
            self.lines.append(values)

        def set_title(self, title: str) -> None:
            self.title = title

        def set_xticks(self, places: list[int], labels: list[str]) -> None:
            assert labels == ["16 / 2", "64 / 2"]

        def set_xlabel(self, label: str) -> None:
            assert label == "max-num-seqs / req/s"

        def set_ylim(self, *, bottom: float) -> None:
            assert bottom == 0

        def legend(self) -> None:
            pass

    class Figure:
        def __init__(self) -> None:
            self.axes = [Axis() for _ in range(4)]
            self.saved: Path | None = None

        def set_size_inches(self, width: float, height: float) -> None:
            pass

        def subplots(self, rows: int, columns: int) -> list[Axis]:
            return self.axes

        def tight_layout(self) -> None:
            pass

        def savefig(self, path: Path) -> None:
            self.saved = path

    figure = Figure()
    draw([point("16", 2.0, 0.5), point("64", 2.0, 0.25)], figure, tmp_path / "plot.png")
    assert figure.saved == tmp_path / "plot.png"
    assert {axis.title: axis.lines for axis in figure.axes} == {
        "output tokens per second": [[1.0, 1.0]],
        "TTFT in ms": [[500.0, 250.0]] * 2,
        "ITL in ms": [[500.0, 250.0]] * 2,
        "E2EL in ms": [[1000.0, 500.0]] * 2,
    }


STUBBORN = """
import http.server, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1])), Answer).serve_forever()
"""


def test_a_server_that_does_not_stop_is_killed() -> None:
    async def main() -> None:
        command = [sys.executable, "-c", STUBBORN]
        async with served(command, clock=time.monotonic, ready_timeout_s=30.0, stop_timeout_s=0.05) as url:
            assert url.startswith("http://127.0.0.1:")

    asyncio.run(main())


def test_a_server_that_never_gets_ready() -> None:
    async def main() -> None:
        command = [sys.executable, "-c", "import time; print('loading', flush=True); time.sleep(600)"]
        async with served(command, clock=time.monotonic, ready_timeout_s=0.5):
            raise AssertionError("it was never ready")

    with pytest.raises(ChairliftError, match="did not become ready"):
        asyncio.run(main())
