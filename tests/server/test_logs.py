"""The log: lines of text or of JSON, which no client can forge, and which tell nothing of what was said."""

from __future__ import annotations

import http.client
import json
import logging
import re
import signal
import sys
import threading
import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.errors import InvalidOption
from chairlift.server.logs import ABOUT, JsonLines, TextLines, WrittenBehind, printable
from chairlift.server.options import ServerOptions
from chairlift.server.process import MAX_LINE_BYTES, WorkerProcess
from server.fake_worker import FAIL
from server.running import TIMEOUT_S, until
from server.served import Served, served

PROMPT = "the prompt that nobody may see"
KEY = "sk-the-key-that-nobody-may-see"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
FORGED = 'x\n2026-01-01T00:00:00.000Z INFO chairlift.server id=forged\r\x1b[2K\x85\u2028{"level":"info"}'


def record(
    message: str, *arguments: object, error: Exception | None = None, about: str | None = None
) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    made = logging.LogRecord("chairlift.server", logging.ERROR, __file__, 1, message, arguments, info)
    if about is not None:
        made.__dict__[ABOUT] = about
    return made


def raised(text: str) -> Exception:
    try:
        try:
            raise KeyError(text)
        except KeyError as error:
            raise ValueError(f"about {text}") from error
    except ValueError as error:
        return error


# ---------------------------------------------------------------- single lines


def test_a_line_says_when_how_bad_who_and_what() -> None:
    line = json.loads(JsonLines().format(record("it is %s", "so", about="r1")))
    assert TIME.fullmatch(line.pop("time"))
    assert line == {"level": "error", "logger": "chairlift.server", "message": "it is so", "request_id": "r1"}
    text = TextLines().format(record("it is %s", "so", about="r1"))
    assert TIME.match(text) and text.endswith(" ERROR chairlift.server it is so id=r1")


@pytest.mark.parametrize("form", [JsonLines(), TextLines()])
def test_nobody_can_begin_a_line_of_their_own(form: logging.Formatter) -> None:
    line = form.format(record("said %s", FORGED, about=FORGED))
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line


@given(st.text(st.characters()))
def test_what_is_printed_is_what_is_seen(text: str) -> None:
    shown = printable(text)
    assert len(f"x{shown}x".splitlines()) == 1
    assert shown.encode().decode() == shown
    assert not any(unicodedata.category(character) in ("Cc", "Cs") for character in shown)
    if text.isascii() and text.isprintable():
        assert shown == text


def test_a_traceback_below_a_line_of_text_cannot_be_taken_for_lines() -> None:
    lines = TextLines().format(record("it failed", error=raised(FORGED))).splitlines()
    assert TIME.match(lines[0])
    assert len(lines) > 5 and all(line.startswith("    ") for line in lines[1:])


@pytest.mark.parametrize("kind", [JsonLines, TextLines])
def test_what_an_exception_says_of_a_request_is_told_only_if_everything_is(kind: type[JsonLines | TextLines]) -> None:
    of_request = record("a request failed", error=raised(PROMPT), about="r1")
    quiet = kind().format(of_request)
    assert PROMPT not in quiet
    assert "ValueError" in quiet and "KeyError" in quiet and "in raised" in quiet
    assert PROMPT in kind(tells_all=True).format(of_request)
    assert "the disk" in kind().format(record("nobody's request failed", error=raised("the disk")))


def test_formats_and_levels_are_a_closed_set() -> None:
    for field in ("log_format", "log_level"):
        wrong: dict[str, Any] = {field: "xml"}
        with pytest.raises(InvalidOption, match=field):
            ServerOptions(**wrong)


# ---------------------------------------------------------------- writing


class Output:
    """Takes nothing until it is let go, or fails."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.is_written_to = threading.Event()
        self.fails = False
        self.written = b""

    def write(self, data: bytes) -> None:
        self.is_written_to.set()
        self.gate.wait(TIMEOUT_S)
        if self.fails:
            raise OSError(28, "No space left on device")
        self.written += data


def test_an_output_that_takes_nothing_makes_nobody_wait_and_what_is_lost_is_told() -> None:
    out = Output()
    log = WrittenBehind(out.write, max_queued=10)
    log.setFormatter(JsonLines())
    log.handle(record("first"))
    assert out.is_written_to.wait(TIMEOUT_S)
    for number in range(100):
        log.handle(record("line %d", number))
    out.gate.set()
    until(lambda: b"were lost" in out.written)
    log.flush()
    told = [json.loads(line)["message"] for line in out.written.splitlines()]
    assert told[:-1] == ["first", *(f"line {number}" for number in range(10))]
    assert told[-1].startswith("90 lines of the log were lost")


def test_an_output_that_fails_is_not_the_end_of_the_log() -> None:
    out = Output()
    out.gate.set()
    out.fails = True
    log = WrittenBehind(out.write)
    log.handle(record("gone"))
    log.flush()
    out.fails = False
    log.handle(record("written"))
    log.flush()
    assert out.written == b"written\n"


def test_a_server_whose_log_nobody_reads_serves_and_ends() -> None:
    """The system keeps 64 KiB for who reads late; the server stood still from there on."""
    with served() as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
        for _ in range(800):
            connection.request("GET", "/v1/models", headers={"x-request-id": "x" * 128})
            assert connection.getresponse().read()
        connection.close()
        server.tell(signal.SIGTERM)
        assert server.status() == 0
        assert server.process.stderr is not None
        lines = server.process.stderr.read().splitlines()
    assert 200 < sum(line.endswith("route=/v1/models status=200") for line in lines) < 800


# ---------------------------------------------------------------- a worker's own lines


def test_what_a_worker_writes_is_handed_over_line_by_line_whatever_it_is() -> None:
    code = f"import os; os.write(2, b'one\\n\\n\\xff two\\r\\n' + b'x' * {MAX_LINE_BYTES + 5} + b'\\nno end')"
    told: list[str] = []
    with WorkerProcess(lambda fd: [sys.executable, "-c", code], told.append):
        until(lambda: len(told) == 5)
    assert told == ["one", "\ufffd two", "x" * MAX_LINE_BYTES, "x" * 5, "no end"]


# ---------------------------------------------------------------- a server


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """Everything that a server logs in its life: answers, refusals, a failure in the engine, its loss, its end."""
    path = tmp_path_factory.mktemp("log") / "stderr"
    options: dict[str, Any] = {"log_format": "json", "log_level": "debug", "api_keys": (KEY,)}
    with path.open("w") as file, served({"heartbeat_s": 0.05}, stderr=file, **options) as server:
        _live(server)
    yield [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _live(server: Served) -> None:
    key = {"Authorization": f"Bearer {KEY}"}

    def ask(prompt: str, request_id: str, **fields: Any) -> int:
        headers = key | {"X-Request-Id": request_id}
        return server.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 9} | fields, headers)[0]

    assert ask(PROMPT, "fine", user="ten\u2028ant") == 200
    assert ask(PROMPT, "wrong", temperature=-1) == 400
    assert ask(f"{PROMPT} {FAIL}", "failed", ignore_eos=True) == 500
    assert server.ask("POST", "/v1/completions", {"prompt": PROMPT}, {"Authorization": "Bearer wrong-key"})[0] == 401
    assert ask("!die", "died", ignore_eos=True) == 503
    until(lambda: server.get("/ready")[0] == 200)
    server.tell(signal.SIGTERM)
    assert server.process.wait(TIMEOUT_S) == 0


def test_every_line_is_an_object_with_the_same_beginning(log: list[dict[str, Any]]) -> None:
    assert all(list(line)[:4] == ["time", "level", "logger", "message"] for line in log)
    assert {"loading fake", "starting the engine again"} <= {line["message"] for line in log}


def test_a_request_is_known_by_the_id_of_its_response_in_every_line(log: list[dict[str, Any]]) -> None:
    (fine,) = [line for line in log if line.get(ABOUT) == "fine"]
    assert (fine["message"], fine["route"], fine["method"], fine["status"]) == (
        "request",
        "/v1/completions",
        "POST",
        200,
    )
    assert (fine["tenant"], fine["completion_tokens"], fine["finish"]) == ("ten\u2028ant", 9, ["length"])
    assert 0 <= fine["queue_s"] <= fine["ttft_s"] <= fine["total_s"]
    assert len(fine["principal"]) == 16
    (wrong,) = [line for line in log if line.get(ABOUT) == "wrong"]
    assert (wrong["status"], wrong["completion_tokens"]) == (400, 0)
    in_engine, failed = (line for line in log if line.get(ABOUT) == "failed")
    assert in_engine["message"].startswith("the engine failed a request")
    assert (failed["status"], failed["code"], failed["finish"]) == (500, "internal_error", ["error"])
    (died,) = [line for line in log if line.get(ABOUT) == "died"]
    assert (died["status"], died["code"]) == (503, "engine_dead")


def test_neither_prompts_nor_keys_are_in_it(log: list[dict[str, Any]]) -> None:
    text = json.dumps(log)
    assert PROMPT not in text and KEY not in text and "wrong-key" not in text


def test_what_libraries_say_has_the_same_form(log: list[dict[str, Any]]) -> None:
    assert "uvicorn.error" in {line["logger"] for line in log}
