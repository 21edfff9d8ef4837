"""`chairlift serve` with a fake worker: `python serve_fake.py WORKER_OPTIONS_JSON SERVER_OPTIONS_JSON`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from chairlift.core.errors import ChairliftError
from chairlift.server import ServerOptions, serve
from chairlift.server.traced import Traces
from server.fake_text import FakeText


def main(
    worker: str = "fake_worker.py",
    text: Callable[[], FakeText] = FakeText,
    open_traces: Callable[[str], Traces] | None = None,
) -> int:
    """Serve with the worker of this name beside this file."""

    def worker_command(fd: int) -> list[str]:
        return [sys.executable, str(Path(__file__).parent / worker), "--fd", str(fd), "--options", sys.argv[1]]

    try:
        options = msgspec.json.decode(sys.argv[2], type=ServerOptions)
        return serve(options, "fake", worker_command, lambda _: text(), open_traces=open_traces)
    except ChairliftError as error:
        print(f"chairlift: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
