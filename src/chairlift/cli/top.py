"""`chairlift top`: a server as it is now, in a terminal."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from chairlift.core.errors import InvalidOption

if TYPE_CHECKING:
    from chairlift.cli.live_client import LiveClient
    from chairlift.cli.top_frame import Line
    from chairlift.server.ui.shapes import Live

DEFAULT_URL = "http://127.0.0.1:8000"
MIN_INTERVAL_S = 0.2
EXIT_SILENT = 1
"""With `--once`, if the server does not answer."""
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
"""Another screen, no cursor, no wrapping; and back."""
_QUITS = frozenset(b"qQ\x03\x04")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "top",
        help="watch a server in the terminal",
        description="Show who runs, who waits, how fast and how full a server is, again and again; q leaves. The "
        "server needs its page (--ui, on where it asks for no key). An API key shows its own requests, an admin key "
        "those of all.",
    )
    parser.add_argument("url", nargs="?", default=DEFAULT_URL, metavar="URL", help="default: %(default)s")
    parser.add_argument("--uds", metavar="PATH", help="Unix socket of the server, instead of the address in URL")
    parser.add_argument("--api-key", metavar="KEY", help="sent as bearer token (better given as CHAIRLIFT_API_KEY)")
    parser.add_argument(
        "--admin-api-key", metavar="KEY", help="instead of an API key (better given as CHAIRLIFT_ADMIN_API_KEY)"
    )
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="default: %(default)s")
    parser.add_argument("--once", action="store_true", help="print one frame and end: for scripts")
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Show frames until told to stop."""
    from chairlift.cli.live_client import LiveClient, Silent

    if not arguments.interval >= MIN_INTERVAL_S:
        raise InvalidOption(f"--interval must be at least {MIN_INTERVAL_S} seconds")
    key = arguments.admin_api_key or arguments.api_key
    with contextlib.closing(LiveClient(arguments.url, key, arguments.uds)) as client:
        if arguments.once:
            try:
                live = client.live()
            except Silent as error:
                print(f"chairlift: {error}", file=sys.stderr)
                return EXIT_SILENT
            _print_once(live)
            return 0
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise InvalidOption("this is no terminal: --once prints one frame")
        _watch(client, arguments.interval)
    return 0


def _print_once(live: Live) -> None:
    """A frame as wide as the terminal, or as 100 columns, and as long as it needs."""
    from chairlift.cli.top_frame import frame

    is_terminal = sys.stdout.isatty()
    size = shutil.get_terminal_size((100, 60))
    for line in frame(live, "", size.columns, size.lines if is_terminal else 60):
        print(_rendered(line) if is_terminal else "".join(span.text for span in line).rstrip())


def _watch(client: LiveClient, interval_s: float) -> None:
    """Until a key, Ctrl-C or a signal says so; the terminal is as it was before, whatever happens."""
    from chairlift.cli.live_client import Silent
    from chairlift.cli.top_frame import frame

    live: Live | None = None
    notice, seen_at = f"asking {client.name} ...", time.monotonic()
    with _screen() as wait:
        next_at = 0.0
        while True:
            if time.monotonic() >= next_at:
                try:
                    live, notice, seen_at = client.live(), "", time.monotonic()
                except Silent as error:
                    age = f"as of {time.monotonic() - seen_at:.0f} s ago: " if live is not None else ""
                    notice = f"{age}{error}"
                next_at = time.monotonic() + interval_s
            width, height = os.get_terminal_size(sys.stdout.fileno())  # COLUMNS and LINES do not follow a window
            width, height = width or 80, height or 24
            _draw(frame(live, notice, width, height), height)
            if wait(next_at - time.monotonic()):
                return


def _draw(lines: list[Line], height: int) -> None:
    """In place: each line is written over what was there, so that nothing flickers."""
    shown = [f"\x1b[{number};1H{_rendered(line)}\x1b[K" for number, line in enumerate(lines, 1)]
    rest = f"\x1b[{len(lines) + 1};1H\x1b[J" if len(lines) < height else ""
    sys.stdout.write(f"{''.join(shown)}{rest}\x1b[{height};1H\x1b[2mq quits\x1b[0m\x1b[K")
    sys.stdout.flush()


def _rendered(line: Line) -> str:
    return "".join(f"\x1b[{span.style}m{span.text}\x1b[0m" if span.style else span.text for span in line)


@contextlib.contextmanager
def _screen() -> Iterator[Callable[[float], bool]]:
    """Another screen in which keys come as they are pressed. Gives what waits so many seconds, or less if the window
    changes, and says whether to leave."""
    import select
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    told: list[int] = []

    def note(number: int, _: object) -> None:
        told.append(number)
        with contextlib.suppress(BlockingIOError):
            os.write(writer, b"x")

    def wait(timeout_s: float) -> bool:
        ready, _, _ = select.select([descriptor, reader], [], [], max(0.0, timeout_s))
        if reader in ready:
            os.read(reader, 64)
        if any(number != signal.SIGWINCH for number in told):
            return True
        told.clear()
        if descriptor in ready:
            pressed = os.read(descriptor, 64)
            return not pressed or not _QUITS.isdisjoint(pressed)
        return False

    numbers = (signal.SIGWINCH, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = [signal.signal(number, note) for number in numbers]
    try:
        tty.setcbreak(descriptor)
        sys.stdout.write(_ENTER)
        sys.stdout.flush()
        yield wait
    finally:
        with contextlib.suppress(OSError, termios.error):  # a terminal that is gone needs nothing back
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)
