"""`chairlift top`: frames that fit whatever terminal there is, and a terminal that is left as it was found."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chairlift.cli.live_client import LiveClient, Silent
from chairlift.cli.main import main
from chairlift.cli.top_frame import Line, column, columns, frame, printable
from chairlift.core.errors import InvalidOption
from chairlift.server.ui.shapes import Live
from server.fake_worker import FakeOptions
from server.running import TIMEOUT_S, RunningServer, running_server, until
from server.ui.test_watching import asking

EVIL = (
    "\x1b[2J\x1b]0;title\x07",
    "\u202eevil\u2066",
    "日本語の名前" * 9,
    "e\u0301" * 70,
    "a\u0300" + "\u0301" * 100,
    "",
)


def row(number: int, **fields: Any) -> dict[str, Any]:
    known = {
        "id": f"chatcmpl-{number}", "choice": 0, "principal": "", "tenant": f"tenant {number}", "slot": number,
        "phase": "decode", "prompt_tokens": 900, "cached_tokens": 0, "computed_tokens": 910, "output_tokens": 11,
        "max_output_tokens": 99, "blocks": 3, "preemptions": 0, "age_s": 3.21, "running_s": 2.0,
    }  # fmt: skip
    return known | fields


def told(num_running: int = 0, num_waiting: int = 0, num_groups: int = 0, num_ended: int = 0, **fields: Any) -> Live:
    """A server as it might be."""
    counts = {
        "running": num_running, "waiting": num_waiting, "waiting_by_reason": {"slots": num_waiting},
        "max_num_seqs": 32, "max_num_batched_tokens": 512, "preemptions": 0, "prefix_queries": 10, "prefix_hits": 4,
        "step_tokens": 1, "step_s": 0.01, "blocks": {"size": 16, "total": 1000, "used": 250, "cached": 50},
    }  # fmt: skip
    latency = {"count": 5, "p50": 0.25, "p99": 1.5}
    series = {"output_tokens": [0] * 119 + [80], "prompt_tokens": [], "running": [], "waiting": []}
    group = {
        "principal": "key", "tenant": "t", "running": 1, "waiting": 0, "ended": 2, "failed": 0, "output_tokens": 1234,
        "ttft_p50_s": 0.25, "ttft_p99_s": None,
    }  # fmt: skip
    ended = {
        "id": "cmpl-x", "principal": "", "tenant": "", "choices": 1, "prompt_tokens": 12, "cached_tokens": 0,
        "output_tokens": 34, "queue_s": 0.01, "ttft_s": 0.25, "total_s": 1.5, "ended_by": "length", "ago_s": 3.0,
    }  # fmt: skip
    content = {
        "state": "serving", "sees": "all", "version": "1", "models": ["model"], "max_model_len": 4096, "up_s": 7200.0,
        "looked_s": 0.0,
        "engines": [{
            "model": "model", "generates": True, "counts": counts,
            "running": [row(number) for number in range(num_running)],
            "waiting": [row(number, slot=None, phase="waiting") for number in range(num_waiting)],
        }],
        "lately": {
            "rates": {"output_tokens": 80.0, "prompt_tokens": 4.0, "steps": 9.5},
            "ttft_s": latency, "itl_s": latency, "series": series,
        },
        "groups": [group] * num_groups, "ended": [ended] * num_ended,
    }  # fmt: skip
    return msgspec.convert(content | fields, Live, strict=True)


def text(lines: list[Line]) -> list[str]:
    return ["".join(span.text for span in line) for line in lines]


# ---------------------------------------------------------------- frames


def test_a_frame_says_how_it_is() -> None:
    lines = text(frame(told(3, 2, 1, 2), "", 80, 24))
    assert lines[0] == "Chairlift ● serving  model  up 2 h"
    assert re.match(r" +80 tok/s +█  running 3 of 32  2 waiting \(2 slots\)$", lines[1])
    assert lines[2].endswith("TTFT 250 ms p50, 1.5 s p99  ITL 250 ms p50, 1.5 s p99")
    assert "25% cache" in lines[3]
    assert "250 + 50 kept of 1,000 blocks, 40% found" in lines[3]
    rows = [line for line in lines if re.search(r"(decode|waiting) *$", line)]
    assert [one.split()[0] for one in rows] == ["0", "1", "2", "-", "-"]
    assert rows[0].rstrip() == "   0  tenant 0           0                          900      11     3 s  decode"
    assert any(line.startswith("t key") and "1,234" in line for line in lines)
    assert any(line.startswith("x ") and line.endswith("length") for line in lines)


@pytest.mark.parametrize("before", ["", "cmpl-", "chatcmpl-", "msg_", "resp_"])
def test_ids_are_shown_without_what_their_api_puts_before_them(before: str) -> None:
    live = told(num_ended=1)
    live.ended[0].id = before + "x_cmpl-1"
    assert any(line.startswith("x_cmpl-1 ") for line in text(frame(live, "", 80, 24)))


@pytest.mark.parametrize("seed", range(30))
def test_a_frame_fits_whatever_is_in_it(seed: int) -> None:
    rng = random.Random(seed)
    live = told(*(rng.choice([0, 1, 5, 40]) for _ in range(4)))
    for one in (*live.engines[0].running, *live.engines[0].waiting):
        one.tenant, one.id = rng.choice(EVIL), rng.choice([None, *EVIL])
    for width, height in ((80, 24), (40, 8), (200, 60), (rng.randint(40, 150), rng.randint(8, 70))):
        lines = text(frame(live, rng.choice(["", "x" * 300]), width, height))
        assert len(lines) < height
        assert max(map(columns, lines)) <= width
        assert "\x1b" not in "".join(lines)
        shown = [line for line in lines if re.search(r"  (decode|waiting)\b", line)]
        if live.engines[0].running and height >= 24 and width >= 64:
            assert len(shown) >= min(5, len(live.engines[0].running))


def test_more_than_there_is_room_for_is_counted() -> None:
    lines = text(frame(told(32), "", 80, 24))
    (more,) = [line for line in lines if "more" in line]
    shown = sum("  decode" in line for line in lines)
    assert more.strip() == f"and {32 - shown} more"
    assert len(lines) == 23


def test_a_server_at_rest_and_one_that_is_gone() -> None:
    assert "Nobody is being served." in text(frame(told(num_ended=3), "", 80, 24))
    assert "no answer" in text(frame(told(), "no answer", 80, 24))[0]
    assert "no answer" in text(frame(None, "no answer", 80, 24))[2]
    assert "engine lost" in text(frame(told(state="engine_dead"), "", 80, 24))[0]


def test_who_sees_only_their_own_is_told_so() -> None:
    live = told(1, lately=None)
    live.engines[0].counts = None
    assert "yours alone" in text(frame(live, "", 80, 24))[1]


def test_names_take_the_room_that_is_theirs() -> None:
    for name in EVIL:
        assert columns(column(name, 12)) == 12
    assert column("日本語", 4) == "日… "
    assert printable("a\x1b[31m\x00\u202eb\ud800") == "a�[31m��b�"
    assert printable("e\u0301\u0301") == "é"


# ---------------------------------------------------------------- a server


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(FakeOptions(step_s=0.002, heartbeat_s=0.05), log_requests=False) as running:
        yield running


def asked(url: str, key: str | None = None, uds: str | None = None) -> Live:
    with contextlib.closing(LiveClient(url, key, uds)) as client:
        return client.live()


def test_one_frame_for_a_script(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    with asking(server, "one"):
        assert main(["top", server.url, "--once"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"0  of-one +one ", shown)
    assert "\x1b" not in shown


@pytest.mark.parametrize("prefix", ["", "/ui", "/llm/ui/"])
def test_the_address_of_the_page_will_do(prefix: str) -> None:
    with running_server(root_path="/llm") as server:
        assert asked(server.url + prefix).models == ["fake"]


def test_a_connection_is_kept_and_made_anew(server: RunningServer) -> None:
    def close_all() -> None:
        for one in server.http.connections:
            one.transport.close()

    with contextlib.closing(LiveClient(server.url.removeprefix("http://"), None)) as client:
        client.live()
        client.live()
        assert server.num_connections() == 1
        server.loop.call_soon_threadsafe(close_all)
        until(lambda: server.num_connections() == 0)
        assert client.live().state == "serving"


def test_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "sock")
    with running_server(uds=path):
        assert asked("http://localhost", None, path).models == ["fake"]


@pytest.mark.parametrize(
    ("options", "key", "complaint"),
    [
        ({"api_keys": ("right-key",), "ui": True}, "wrong", "wants another key than this"),
        ({"api_keys": ("right-key",), "ui": True}, None, "wants a key"),
        ({"ui": False}, None, "start it with --ui"),
    ],
)
def test_a_server_that_shows_nothing_says_why(options: dict[str, Any], key: str | None, complaint: str) -> None:
    with running_server(**options) as server, pytest.raises(Silent, match=complaint):
        asked(server.url, key)


def test_keys_come_from_flags_and_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys: dict[str, Any] = {"api_keys": ("client-key",), "admin_api_keys": ("owner-key",), "ui": True}
    with running_server(**keys) as server:
        body = {"prompt": "x", "max_tokens": 1, "request_id": "whose"}
        server.json("POST", "/v1/completions", body, {"Authorization": "Bearer client-key"})
        monkeypatch.setenv("CHAIRLIFT_ADMIN_API_KEY", "owner-key")
        assert main(["top", server.url, "--once"]) == 0
        assert "whose" in capsys.readouterr().out
        monkeypatch.delenv("CHAIRLIFT_ADMIN_API_KEY")
        assert main(["top", server.url, "--once"]) == 1
        assert "wants a key" in capsys.readouterr().err
        assert main(["top", server.url, "--once", "--api-key", "client-key"]) == 0


def test_what_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for url in ("ftp://x", "http://", "http://x:99999"):
        with pytest.raises(InvalidOption):
            LiveClient(url, None)
    with pytest.raises(InvalidOption):
        LiveClient("x", "k\r\nevil: 1")
    assert main(["top", "--interval", "0"]) == 2
    assert main(["top", "--interval", "nan"]) == 2
    assert main(["top", "127.0.0.1:9", "--once"]) == 1
    assert "127.0.0.1:9 does not answer" in capsys.readouterr().err


# ---------------------------------------------------------------- a terminal


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self.ours, self.theirs = pty.openpty()
        self.before = termios.tcgetattr(self.theirs)
        self.resize(80, 24)
        self.shown = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "chairlift", *arguments],
            stdin=self.theirs, stdout=self.theirs, stderr=self.theirs, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def until(self, pattern: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not re.search(pattern, self.shown):
            assert time.monotonic() < deadline, self.shown[-3000:]
            if select.select([self.ours], [], [], 0.05)[0]:
                self.shown += os.read(self.ours, 1 << 16).decode()

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def status(self) -> int:
        """Its exit status, once it is over and all that it wrote is read."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None or select.select([self.ours], [], [], 0)[0]:
            assert time.monotonic() < deadline, self.shown[-3000:]
            if select.select([self.ours], [], [], 0.02)[0]:
                self.shown += os.read(self.ours, 1 << 16).decode()
        return self.process.returncode

    def check_left_as_found(self) -> None:
        assert termios.tcgetattr(self.theirs) == self.before
        assert self.shown.rindex("\x1b[?1049l") > self.shown.rindex("\x1b[?1049h")
        assert self.shown.rindex("\x1b[?25h") > self.shown.rindex("\x1b[?25l")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for one in opened:
        one.close()


def test_it_follows_the_server_and_the_window_and_quits(server: RunningServer, terminals: list[Terminal]) -> None:
    terminal = Terminal("top", server.url, "--interval", "0.2")
    terminals.append(terminal)
    terminal.until("Nobody is being served")
    with asking(server, "seen"):
        terminal.until("of-seen")
    terminal.resize(100, 30)
    terminal.until(r"\x1b\[30;1H\x1b\[2mq quits")
    terminal.type("x")
    terminal.type("q")
    assert terminal.status() == 0
    terminal.check_left_as_found()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_the_terminal_as_it_was(
    server: RunningServer, terminals: list[Terminal], number: signal.Signals
) -> None:
    terminal = Terminal("top", server.url)
    terminals.append(terminal)
    terminal.until("q quits")
    if number is signal.SIGINT:
        terminal.type("\x03")
    else:
        terminal.process.send_signal(number)
    assert terminal.status() == 0
    terminal.check_left_as_found()


def test_a_key_is_heard_while_the_server_says_nothing(terminals: list[Terminal]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        terminal = Terminal("top", f"127.0.0.1:{silent.getsockname()[1]}")
        terminals.append(terminal)
        connection, _ = silent.accept()
        with connection:
            terminal.until("asking 127.0.0.1")
            terminal.type("q")
            assert terminal.status() == 0
        terminal.check_left_as_found()


def test_it_can_be_put_aside_and_taken_up_again(server: RunningServer, terminals: list[Terminal]) -> None:
    terminal = Terminal("top", server.url)
    terminals.append(terminal)
    terminal.until("serving")
    terminal.type("\x1a")
    terminal.until(r"\x1b\[\?1049l$")
    until(lambda: "T" in Path(f"/proc/{terminal.process.pid}/stat").read_text().rpartition(")")[2].split()[0])
    assert termios.tcgetattr(terminal.theirs) == terminal.before
    terminal.process.send_signal(signal.SIGCONT)
    terminal.until(r"1049h[^\0]*1049l[^\0]*1049h[^\0]*serving")
    terminal.type("q")
    assert terminal.status() == 0
    terminal.check_left_as_found()


def test_a_server_that_goes_and_comes_back(terminals: list[Terminal]) -> None:
    with running_server() as server:
        port = server.port
        terminal = Terminal("top", server.url, "--interval", "0.2")
        terminals.append(terminal)
        terminal.until("serving")
    terminal.until(r"as of \d+ s ago: .* does not answer")
    terminal.shown = ""
    with running_server(port=port):
        terminal.until("Nobody is being served")
        terminal.type("q")
        assert terminal.status() == 0


def test_without_a_terminal_it_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "chairlift", "top"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "--once" in done.stderr
