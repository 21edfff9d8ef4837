"""The command line: where values come from, what mistakes look like, and how fast help is."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from chairlift.cli import main as cli
from chairlift.cli.main import _parser, main, parse
from chairlift.cli.options import engine_options, model_name
from chairlift.core.errors import EngineDead, InvalidModel, InvalidOption
from chairlift.executors.openvino.options import Dtype, KVCacheDtype
from chairlift.models.resolve import DEFAULT_MODEL
from chairlift.worker import options


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--help"], ["serve", "--help"], ["generate", "--help"], ["chat", "--help"], ["bench", "--help"]):
        with pytest.raises(SystemExit) as done:
            main(argv)
        assert done.value.code == 0
        assert "usage: chairlift" in capsys.readouterr().out


def test_help_loads_no_model_code() -> None:
    code = (
        "import sys\nfrom chairlift.cli.main import parse\n"
        "try:\n    parse(['--help'], {})\nexcept SystemExit:\n    pass\n"
        "unwanted = {'numpy', 'openvino', 'tokenizers', 'uvicorn', 'huggingface_hub', 'chairlift.llm'}\n"
        "print([m for m in sys.modules if m in unwanted])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_listing_models_loads_nothing_that_computes() -> None:
    code = (
        "import sys\nfrom chairlift.cli.main import main\nassert main(['models']) == 0\n"
        "print([m for m in sys.modules if m in {'numpy', 'openvino', 'tokenizers'}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_flag_then_environment_then_file_then_default(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("max_num_seqs: 1\nmax-model-len: 1k\nseed: 1\nmodel: from-file\ndtype: int4\n", encoding="utf-8")
    environment = {"CHAIRLIFT_MAX_NUM_SEQS": "2", "CHAIRLIFT_SEED": "2"}
    arguments = parse(["serve", "--config", str(config), "--seed", "3"], environment)
    assert engine_options(arguments) == options.EngineOptions(
        model="from-file", seed=3, max_num_seqs=2, max_model_len=1000, dtype="int4"
    )
    arguments = parse(["serve", "given", "--config", str(config), "--no-enable-prefix-caching"], {})
    assert engine_options(arguments).model == "given"
    assert not engine_options(arguments).enable_prefix_caching
    assert engine_options(parse(["chat"], {})) == options.EngineOptions(model=DEFAULT_MODEL)
    policy = ["--scheduling-policy", "fair", "--tenant-weights", "a=2,b=1", "--no-enable-chunked-prefill"]
    for command in (["serve"], ["generate", "x"], ["chat"], ["bench", "throughput"]):
        assert engine_options(parse([*command, *policy], {})) == options.EngineOptions(
            model=DEFAULT_MODEL,
            scheduling_policy="fair",
            tenant_weights={"a": 2.0, "b": 1.0},
            enable_chunked_prefill=False,
        )


def test_two_models_are_one_too_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """But for one in a file or the environment, which is only a default."""
    for command in ("serve", "chat"):
        with pytest.raises(SystemExit):
            parse([command, "a", "--model", "b"], {})
        assert "two models: a and --model b (" in capsys.readouterr().err
        assert model_name(parse([command, "a", "--model", "a"], {})) == "a"
        assert model_name(parse([command, "a"], {"CHAIRLIFT_MODEL": "b"})) == "a"
        assert model_name(parse([command], {"CHAIRLIFT_MODEL": "b"})) == "b"


@pytest.mark.parametrize("flag", ["--dtype", "--kv-cache-dtype"])
def test_precisions_have_other_names(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name, meant in (("float", "float32"), ("fp32", "float32"), ("bf16", "bfloat16"), ("auto", "auto")):
        assert getattr(parse(["serve", flag, name], {}), flag[2:].replace("-", "_")) == meant
    for name in ("half", "float16", "fp16"):
        with pytest.raises(SystemExit):
            parse(["serve", flag, name], {})
        assert f"{name} is not there: bfloat16 takes" in capsys.readouterr().err


@pytest.mark.parametrize(("argv", "named"), [([], "serve a model over HTTP"), (["bench"], "compare settings")])
def test_a_command_that_is_not_whole_shows_what_there_is(
    argv: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert named in capsys.readouterr().err


def test_every_flag_says_what_it_does() -> None:
    parsers, seen = [_parser()], 0
    while parsers:
        parser = parsers.pop()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers.extend(action.choices.values())
            elif action.option_strings:
                seen += 1
                assert action.help, f"{parser.prog} {action.option_strings}"
    assert seen > 100


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["serve", "--dtype", "tiny"], "tiny"),
        (["serve", "--tensor-parallel-size", "2"], "--tensor-parallel-size"),
        (["fly"], "fly"),
        (["serve", "--kv-cache-memory-bytes", "much"], "much"),
        (["serve", "--tenant-weights", "a=2,b"], "a=2,b"),
        (["bench", "throughput", "--scheduling-policy", "lifo"], "lifo"),
    ],
)
def test_wrong_flags(argv: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(argv)
    assert done.value.code == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", [["serve"], ["bench", "serve"]])
def test_an_unknown_flag_is_said_by_the_command_whose_help_lists_flags(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as done:
        main([*command, "--bogus"])
    asked = f"chairlift {' '.join(command)}"
    assert done.value.code == 2
    wanted = f"{asked}: unrecognized arguments: --bogus ({asked} --help shows what there is)\n"
    assert capsys.readouterr().err == wanted


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["generate", "x", "--model", "no-such-model"], "no-such-model"),
        (["generate", "x", "--max-num-seqs", "0"], "max_num_seqs"),
        (["generate", "x", "--input", "a"], "--output"),
        (["generate", "x", "--input", "a", "--output", "b"], "not both"),
        (["generate", "--input", "no-such-file", "--output", "b"], "no-such-file"),
        (["chat", "--config", "no-such.yaml"], "no-such.yaml"),
        (["serve", "--host", "0.0.0.0"], "--api-key"),
        (["serve", "--port", "70000"], "port"),
        (["serve", "--model", ""], "model"),
        (["serve", "--max-model-len", "1"], "max_model_len"),
        (["serve", "--max-num-seqs", "100000000"], "max_num_seqs"),
        (["serve", "--seed", str(2**64)], "seed"),
        (["serve", "--served-model-name", "a\nb"], "name"),
        (["serve", "--batching", "static"], "max_batch_wait_ms"),
        (["generate", "x", "--batching", "dynamic", "--prefill-first"], "prefill_first"),
        (["chat", "--watermark", "1"], "watermark"),
        (["serve", "--host", ""], "host"),
        (["generate", ""], "the prompt is empty"),
        (["generate", "x", "--max-num-batched-tokens", "10000000000"], "max_num_batched_tokens"),
        (["serve", "--config", "/dev/zero"], "/dev/zero"),
        (["bench", "throughput", "--output-json", "no-such-folder/x.json"], "no-such-folder"),
        (["bench", "sweep", "--plot", "no-such-folder/x.png"], "no-such-folder"),
        (["bench", "serve", "--save-result", "--result-dir", "no-such-folder"], "no-such-folder"),
    ],
)
def test_what_the_user_can_mend_is_one_line_and_status_2(
    argv: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("chairlift: ")
    assert shown.err.count("\n") == 1
    assert named in shown.err


def test_an_unknown_key_of_a_file_is_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("max-nun-seqs: 3\n", encoding="utf-8")
    assert main(["serve", "--config", str(config)]) == 2
    assert "max-nun-seqs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "status"),
    [(KeyboardInterrupt(), 130), (InvalidModel("no"), 2), (InvalidOption("no"), 2), (EngineDead("killed"), 1)],
)
def test_exit_status(raised: BaseException, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(arguments: argparse.Namespace) -> int:
        raise raised

    monkeypatch.setattr(cli, "parse", lambda argv, environment: argparse.Namespace(run=run))
    assert main(["serve"]) == status


def test_a_reader_that_has_enough_is_no_error() -> None:
    code = (
        "import argparse, sys\nfrom chairlift.cli import main as cli\n"
        "def run(arguments):\n    while True: print('x' * 1000, flush=True)\n"
        "cli.parse = lambda argv, environment: argparse.Namespace(run=run)\nsys.exit(cli.main([]))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(20) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        ("OSError(28, 'No space left on device')", b"chairlift: No space left on device\n"),
        ("OSError(2, 'No such file', '/x')", b"chairlift: /x: No such file\n"),
        ("MemoryError('1 TiB')", b"chairlift: not enough memory: 1 TiB\n"),
    ],
)
def test_what_the_system_refuses_is_one_line_and_status_1(raised: str, message: bytes) -> None:
    code = (
        "import argparse, sys\nfrom chairlift.cli import main as cli\n"
        f"def run(arguments):\n    raise {raised}\n"
        "cli.parse = lambda argv, environment: argparse.Namespace(run=run)\nsys.exit(cli.main([]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", message)


def test_a_full_disk_behind_standard_output_is_one_line() -> None:
    code = (
        "import argparse, sys\nfrom chairlift.cli import main as cli\n"
        "def run(arguments):\n    print('x', flush=True)\n    return 0\n"
        "cli.parse = lambda argv, environment: argparse.Namespace(run=run)\nsys.exit(cli.main([]))"
    )
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"chairlift: No space left on device\n")


def test_closed_streams_are_empty_ones_whose_descriptors_no_socket_takes(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom chairlift.cli.main import main\n"
        "status = main(['generate'])\n"
        "seen = [status, sys.stdin.read(), *map(os.get_inheritable, (0, 1, 2))]\n"
        "open(sys.argv[1], 'w').write(repr(seen))"
    )
    found = tmp_path / "found"
    shell = 'exec "$@" <&- >&- 2>&-'
    subprocess.run(["sh", "-c", shell, "sh", sys.executable, "-c", code, str(found)], check=True)
    assert found.read_text(encoding="utf-8") == repr([2, "", True, True, True])


def test_any_text_can_be_printed_anywhere() -> None:
    code = (
        "import argparse, sys\nfrom chairlift.cli import main as cli\n"
        "def run(arguments):\n    print('caf\xe9 \u2603')\n    return 0\n"
        "cli.parse = lambda argv, environment: argparse.Namespace(run=run)\nsys.exit(cli.main([]))"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, b"caf? ?\n")


def test_precisions_are_those_of_the_executor() -> None:
    assert get_args(options.Dtype) == get_args(Dtype)
    assert get_args(options.KVCacheDtype) == get_args(KVCacheDtype)


@pytest.mark.parametrize("source", ["environment", "file"])
@pytest.mark.parametrize("flag", ["api-key", "admin-api-key", "allowed-host"])
def test_a_repeated_flag_takes_the_place_of_other_sources(flag: str, source: str, tmp_path: Path) -> None:
    """A key from the environment stayed valid beside the one that was to replace it."""
    config = tmp_path / "config.yaml"
    config.write_text(f"{flag}: [old, older]" if source == "file" else "", encoding="utf-8")
    variable = "CHAIRLIFT_" + flag.upper().replace("-", "_")
    environment = {variable: "old"} if source == "environment" else {}
    command = ["serve", "m", "--config", str(config)]
    name = flag.replace("-", "_")
    assert getattr(parse(command, environment), name)[0] == "old"
    assert getattr(parse([*command, f"--{flag}", "new", f"--{flag}", "other"], environment), name) == ["new", "other"]
