"""`chairlift top`: a server as it is now, in a terminal."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import threading
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


class _Picture:
    """The server as it was told last, kept up to date on a thread: keys are heard while a server takes its time."""

    def __init__(self, client: LiveClient, interval_s: float, wake: Callable[[], None]) -> None:
        self.live: Live | None = None
        self.notice = f"asking {client.name} ..."
        """What is wrong; empty if nothing is."""
        self._client = client
        self._interval_s = interval_s
        self._wake = wake
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask no more. A question that is under way is left to itself."""
        self._stopped.set()

    def _run(self) -> None:
        from chairlift.cli.live_client import Silent

        seen_at = time.monotonic()
        while not self._stopped.is_set():
            try:
                self.live, self.notice, seen_at = self._client.live(), "", time.monotonic()
            except Silent as error:
                age = f"as of {time.monotonic() - seen_at:.0f} s ago: " if self.live is not None else ""
                self.notice = f"{age}{error}"
            self._wake()
            self._stopped.wait(self._interval_s)


def _watch(client: LiveClient, interval_s: float) -> None:
    """Until a key, Ctrl-C or a signal says so; the terminal is as it was before, whatever happens."""
    from chairlift.cli.top_frame import frame

    with _screen() as (wait, wake):
        picture = _Picture(client, interval_s, wake)
        picture.start()
        try:
            while True:
                width, height = os.get_terminal_size(sys.stdout.fileno())  # COLUMNS and LINES do not follow a window
                width, height = width or 80, height or 24
                _draw(frame(picture.live, picture.notice, width, height), height)
                if wait():
                    return
        finally:
            picture.stop()


def _draw(lines: list[Line], height: int) -> None:
    """In place: each line is written over what was there, so that nothing flickers."""
    shown = [f"\x1b[{number};1H{_rendered(line)}\x1b[K" for number, line in enumerate(lines, 1)]
    rest = f"\x1b[{len(lines) + 1};1H\x1b[J" if len(lines) < height else ""
    sys.stdout.write(f"{''.join(shown)}{rest}\x1b[{height};1H\x1b[2mq quits\x1b[0m\x1b[K")
    sys.stdout.flush()


def _rendered(line: Line) -> str:
    return "".join(f"\x1b[{span.style}m{span.text}\x1b[0m" if span.style else span.text for span in line)


@contextlib.contextmanager
def _screen() -> Iterator[tuple[Callable[[], bool], Callable[[], None]]]:
    """Another screen in which keys come as they are pressed; stopping and going on (Ctrl-Z, fg) change back and forth.

    Gives what waits for anything and says whether to leave, and what ends such a wait from another thread.
    """
    import select
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    told: list[int] = []

    def wake() -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # full: it will wake; closed: nobody waits
            os.write(writer, b"x")

    def note(number: int, _: object) -> None:
        told.append(number)
        wake()

    def enter() -> None:
        tty.setcbreak(descriptor)
        sys.stdout.write(_ENTER)
        sys.stdout.flush()

    def leave() -> None:
        with contextlib.suppress(OSError, termios.error):  # a terminal that is gone needs nothing back
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

    def wait() -> bool:
        ready, _, _ = select.select([descriptor, reader], [], [])
        if reader in ready:
            os.read(reader, 64)
        heard = {*told}
        told.clear()
        if heard - {signal.SIGWINCH, signal.SIGTSTP}:
            return True
        if signal.SIGTSTP in heard:
            leave()
            os.kill(os.getpid(), signal.SIGSTOP)
            enter()
        if descriptor in ready:
            pressed = os.read(descriptor, 64)
            return not pressed or not _QUITS.isdisjoint(pressed)
        return False

    numbers = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = [signal.signal(number, note) for number in numbers]
    try:
        enter()
        yield wait, wake
    finally:
        leave()
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)
