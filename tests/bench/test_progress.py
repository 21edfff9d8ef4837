from __future__ import annotations

import asyncio
import io

from chairlift.bench.load import Load
from chairlift.bench.progress import ProgressLine, line
from virtual_time import now, run_virtually


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown_on(stream: io.StringIO) -> str:
    async def main() -> None:
        chunks = [0]
        progress = ProgressLine(stream, lambda: chunks[0], now)
        async with progress.shown():
            progress.load = Load(num_requests=8, begun=0.0, num_started=5, num_done=2)
            await asyncio.sleep(0.75)
            chunks[0] = 100
            progress.load.num_failed = 1
            await asyncio.sleep(0.5)

    run_virtually(main())
    return stream.getvalue()


def test_the_line_is_rewritten_and_taken_away() -> None:
    written = shown_on(Terminal()).split("\r\x1b[K")
    assert written == [
        "",
        "2/8 done, 3 in flight, 0 chunks/s, 0 s",
        "2/8 done, 1 failed, 3 in flight, 200 chunks/s, 1 s",
        "",
    ]


def test_files_get_no_line() -> None:
    assert shown_on(io.StringIO()) == ""


def test_line() -> None:
    assert line(Load(10, 5.0, num_started=4, num_done=4), 65.0, 12.4) == "4/10 done, 0 in flight, 12 chunks/s, 60 s"
