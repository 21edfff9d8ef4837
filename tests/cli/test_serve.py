"""`chairlift serve`: flags become the options of server and worker, and a real server answers and stops."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from chairlift.cli import chat_flags
from chairlift.cli.chat_flags import chat_template
from chairlift.cli.main import main
from chairlift.server import run as server_run
from chairlift.server import served_text
from chairlift.server.options import ServerOptions
from chairlift.text.reasoning import REASONING_FORMATS
from chairlift.text.tools import TOOL_FORMATS
from chairlift.worker.options import EngineOptions, decode_options


def test_flags_reach_the_server_and_the_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[Any] = []

    def serve(*arguments: Any) -> int:
        told.extend(arguments)
        return 7

    monkeypatch.setattr(server_run, "serve", serve)
    monkeypatch.setenv("CHAIRLIFT_API_KEY", "secret")
    argv = ["serve", "some-model", "--host", "0.0.0.0", "--port", "0", "--served-model-name", "a", "b"]
    assert main([*argv, "--max-num-seqs", "3", "--shutdown-timeout", "5", "--no-enable-log-requests"]) == 7
    options, model, worker_command, _, embedding_model, open_traces = told
    assert options == ServerOptions(
        host="0.0.0.0",
        port=0,
        api_keys=("secret",),
        served_model_names=("a", "b"),
        shutdown_timeout_s=5.0,
        log_requests=False,
    )
    assert model == "some-model" and embedding_model is None and open_traces is None
    command = worker_command(9)
    assert command[command.index("--fd") + 1] == "9"
    encoded = command[command.index("--options") + 1]
    assert decode_options(encoded) == EngineOptions(model="some-model", max_num_seqs=3)
    assert "secret" not in " ".join(command)


def test_admin_keys_come_from_flags_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[ServerOptions] = []

    def serve(options: ServerOptions, *_: Any) -> int:
        told.append(options)
        return 0

    monkeypatch.setattr(server_run, "serve", serve)
    monkeypatch.setenv("CHAIRLIFT_ADMIN_API_KEY", "from-environment")
    assert main(["serve", "some-model", "--keep-explanations", "5"]) == 0
    monkeypatch.delenv("CHAIRLIFT_ADMIN_API_KEY")
    assert main(["serve", "some-model", "--admin-api-key", "a", "--admin-api-key", "b"]) == 0
    assert [(one.admin_api_keys, one.api_keys, one.keep_explanations) for one in told] == [
        (("from-environment",), (), 5),
        (("a", "b"), (), 1000),
    ]
    assert main(["serve", "some-model", "--admin-api-key", "same", "--api-key", "same"]) == 2
    assert main(["serve", "some-model", "--keep-explanations", "-1"]) == 2


def test_traces_are_asked_for_and_what_they_take_is_named_if_it_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[Any] = []

    def serve(*arguments: Any) -> int:
        told.append(arguments[-1])
        return 0

    monkeypatch.setattr(server_run, "serve", serve)
    argv = ["serve", "some-model", "--otlp-traces-endpoint"]
    monkeypatch.setitem(sys.modules, "chairlift.server.otel", None)  # as if it could not be imported
    assert main([*argv, "http://127.0.0.1:4318"]) == 2
    assert "pip install 'chairlift[otel]'" in capsys.readouterr().err
    monkeypatch.delitem(sys.modules, "chairlift.server.otel")
    otel = pytest.importorskip("chairlift.server.otel")
    assert main([*argv, "http://127.0.0.1:4318"]) == 0
    assert told == [otel.open_traces]
    for wrong in (
        "127.0.0.1:4318",
        "grpc://127.0.0.1:4317",
        "http://",
        "http://a b",
        "http://a:99999",
        "",
        "http://h/#x",
    ):
        assert main([*argv, wrong]) == 2
        assert "otlp_traces_endpoint" in capsys.readouterr().err


def test_nothing_of_tracing_is_loaded_unless_it_is_asked_for() -> None:
    code = "import sys, chairlift.cli.serve, chairlift.server.run; print([m for m in sys.modules if 'telemetry' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_formats_that_flags_name_are_those_that_can_be_read() -> None:
    assert set(chat_flags.TOOL_FORMATS) == set(TOOL_FORMATS)
    assert set(chat_flags.REASONING_FORMATS) == set(REASONING_FORMATS)
    assert (chat_flags.AUTO, chat_flags.NONE) == (served_text.AUTO, served_text.NONE)


def test_a_chat_template_from_a_file_or_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "chat.jinja"
    path.write_text("{{ messages }}", encoding="utf-8")
    assert chat_template(str(path)).source == chat_template("{{ messages }}").source == "{{ messages }}"
    with pytest.raises(argparse.ArgumentTypeError):
        chat_template(str(tmp_path / "none"))
    with pytest.raises(argparse.ArgumentTypeError, match="more than"):
        chat_template("/dev/zero")


def test_a_real_server_answers_and_stops() -> None:
    code = "import sys; from chairlift.cli.main import main; sys.exit(main())"
    small = ["--max-num-seqs", "2", "--max-num-batched-tokens", "64", "--max-model-len", "256"]
    command = [sys.executable, "-c", code, "serve", "--port", "0", *small]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        body = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert answer["choices"][0]["text"].startswith(" Paris")
