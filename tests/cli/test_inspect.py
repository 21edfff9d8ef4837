"""`chairlift inspect` and `chairlift models`: what is on disk, what it takes, and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from chairlift.cli import inspect
from chairlift.cli.main import main
from chairlift.models import ModelFiles
from chairlift.models.summary import summarize
from executors.families import write_checkpoint
from models.writers import tiny_llama
from text.vocabularies import byte_level_backend, write_tokenizer

COMMIT = "a" * 40


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "made"))
    monkeypatch.setattr("chairlift.executors.bandwidth.THREAD_BYTES", 1 << 20)
    return tmp_path / "hub"


def snapshot(cache: Path, repo: str, revision: str = "main", commit: str = COMMIT) -> Path:
    """A place for the files of a repository, as a download leaves it."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / revision).write_text(commit)
    return folder / "snapshots" / commit


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, Any]:
    status = main([*argv, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_a_model_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    status, facts = shown(capsys, "inspect", "smollm2-135m-instruct")
    assert status == 0 and facts["supported"] and facts["problem"] is None
    assert facts["architecture"] == "llama" and facts["num_parameters"] == 134_515_008
    assert list(facts["encodings"])[:2] == ["Q4_1", "Q8_0"]
    assert list(facts["precisions"]) == ["float32", "bfloat16", "int8", "int4", "auto"]
    assert facts["precisions"]["auto"]["chosen"].startswith("int8: 64 numbers of a weight") and facts["written"] is None
    assert {name: cache["bytes_per_token"] for name, cache in facts["caches"].items()} == {
        "float32": 46_080, "bfloat16": 23_040, "u8": 13_680,
    }  # fmt: skip
    assert facts["caches"]["u8"]["bytes"]["8192"] == 8192 * 13_680
    need = facts["precisions"]["int8"]
    assert need["cache_bytes_per_token"] == 23_040 and need["cache_bytes"] == {"2048": 47_185_920, "8192": 188_743_680}
    assert need["weight_bytes"] < need["running_bytes"] < need["loading_bytes"]
    assert need["tokens_per_s"]["0"] > need["tokens_per_s"]["8192"] > 0
    assert main(["inspect", "smollm2-135m-instruct"]) == 0
    text = capsys.readouterr().out
    assert "134.5 million, as Q4_1: Q4_1 69 %" in text and "int8   139 MB   301 MB   284 MB" in text
    assert "are with 43.3 MB of tokenizer and tables" in text and "auto is int8: 64 numbers of a weight share" in text
    assert max(len(line) for line in text.splitlines()[1:]) <= 125
    lines = text.splitlines()
    assert "        u8   13,680  28.0 MB  112 MB" in lines and any(
        line.startswith("       auto   140 MB") for line in lines
    )


def test_a_default_that_does_not_fit_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "int8, the default, does not fit in the memory that is free: no precision does."
    for free_bytes, is_said in ((310_000_000, False), (299_000_000, True), (0, False)):  # 0: nobody says what is free
        monkeypatch.setattr("chairlift.executors.openvino.cache.available_bytes", lambda free=free_bytes: free)
        assert main(["inspect", "smollm2-135m-instruct"]) == 0
        assert (said in capsys.readouterr().out) == is_said


def test_a_file_is_called_by_the_recipe_that_it_was_written_by(tmp_path: Path) -> None:
    """Unless it names none, or one that nobody knows."""
    for number, precision in ((15, "Q4_K_M"), (0, "F32"), (999, "Q8_0"), ("x", "Q8_0")):
        path = tiny_llama().write_gguf(tmp_path / f"{number}.gguf", "Q8_0", extra={"general.file_type": number})
        assert summarize(ModelFiles("tiny", path, "gguf")).precision == precision


def test_counts_and_rates_are_shown_in_full() -> None:
    facts: dict[str, Any] = {
        "name": "m",
        "format": "GGUF",
        "path": "m",
        "problem": None,
        "architecture": "llama",
        "file_bytes": 1,
    }
    facts |= {"num_parameters": 30_723_900_000, "encodings": {"Q4_0": 1}, "written": None}
    assert "  parameters    30.7 billion, as Q4_0 100 %" in inspect._lines(facts)
    assert [inspect._rate(rate) for rate in (1234.5, 999.9, 66.66, 0.05)] == ["1234", "1000", "66.7", "0.05"]


def test_only_caches_that_can_be_read_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, facts = shown(capsys, "inspect", str(write_checkpoint("gemma2", tmp_path / "gemma2")))
    assert list(facts["caches"]) == ["float32", "bfloat16"]


def test_a_quantised_folder_says_what_it_is_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = tiny_llama(vocab_size=512, tied=True)
    model = tiny.write_folder(tmp_path / "tiny")
    write_tokenizer(model, byte_level_backend())
    written = {}
    for dtype in ("int8", "int4", "auto", "float32"):
        assert main(["quantize", str(model), str(tmp_path / dtype), "--dtype", dtype]) == 0
        capsys.readouterr()
        status, facts = shown(capsys, "inspect", str(tmp_path / dtype))
        assert status == 0 and facts["num_parameters"] == sum(numbers.size for numbers in tiny.weights.values())
        written[dtype] = facts["written"], list(facts["precisions"])
    plain = {"num_wide_weights": 0, "head_group": 64, "input_group": None}
    assert written["int8"] == ({"dtype": "int8", **plain}, ["float32", "bfloat16", "int8", "auto"])
    assert written["int4"] == ({"dtype": "int4", **plain}, ["float32", "bfloat16", "int4", "auto"])
    assert written["auto"][0] == {"dtype": "int8", "num_wide_weights": 0, "head_group": 32, "input_group": 32}
    assert written["float32"][1] == ["float32", "bfloat16", "int8", "int4", "auto"]
    assert main(["inspect", str(tmp_path / "auto")]) == 0
    text = capsys.readouterr().out
    assert "quantize in int8, 32 numbers of the head share a scale, and 32 of what weights are multiplied with" in text
    assert "  float32 is the values of the int8 that it was written in." in text


def test_an_encoder_has_weights_and_no_cache(capsys: pytest.CaptureFixture[str]) -> None:
    status, facts = shown(capsys, "inspect", "all-minilm-l6-v2")
    assert status == 0 and facts["kind"] == "encoder"
    assert facts["precisions"]["float32"] == {"weight_bytes": 4 * facts["num_parameters"]}
    assert main(["inspect", "all-minilm-l6-v2"]) == 0
    assert "90.3 MB as float32" in capsys.readouterr().out


def test_what_does_not_run_is_shown_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny_llama(architectures=["MambaForCausalLM"]).write_folder(tmp_path / "odd")
    status, facts = shown(capsys, "inspect", str(folder))
    assert status == inspect.EXIT_UNSUPPORTED and not facts["supported"]
    assert facts["architecture"] == "MambaForCausalLM" and "not supported" in facts["problem"]
    assert facts["file_bytes"] == (folder / "model.safetensors").stat().st_size
    assert main(["inspect", str(folder)]) == inspect.EXIT_UNSUPPORTED
    assert "not supported: " in capsys.readouterr().out


def test_a_tokenizer_that_is_not_there_is_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, facts = shown(capsys, "inspect", str(tiny_llama().write_folder(tmp_path / "bare")))
    assert status == inspect.EXIT_UNSUPPORTED and "tokenizer" in facts["problem"]
    assert facts["num_parameters"] and facts["precisions"]


def test_a_name_that_is_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "org/name"]) == 2
    assert "chairlift pull org/name" in capsys.readouterr().err
    assert main(["inspect", "smollm2-135m-instruct", "--revision", "main"]) == 2
    capsys.readouterr()


def test_a_folder_without_a_model_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert not said.out and said.err.endswith("no model: neither config.json with safetensors files nor GGUF files\n")


def test_packages_and_what_came_from_a_hub(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = tiny_llama()
    whole = snapshot(cache, "org/whole")
    whole.parent.mkdir(parents=True)
    tiny.write_folder(whole)
    files = snapshot(cache, "org/files", "v1")
    files.mkdir(parents=True)
    for kind in ("Q8_0", "F16"):
        tiny.write_gguf(files / f"tiny-{kind}.gguf")
    lacking = snapshot(cache, "org/lacking")
    lacking.parent.mkdir(parents=True)
    tiny.write_folder(lacking)
    (lacking / "config.json").unlink()
    (snapshot(cache, "org/other") / "sub").mkdir(parents=True)

    status, entries = shown(capsys, "models")
    assert status == 0
    found = {entry["name"]: entry for entry in entries}
    assert found["smollm2-135m-instruct"]["precision"] == "Q4_1" and found["all-minilm-l6-v2"]["supported"]
    hub = [name for name in found if found[name]["source"] == "hub"]
    assert hub == ["org/files@v1:tiny-F16.gguf", "org/files@v1:tiny-Q8_0.gguf", "org/lacking", "org/whole"]
    assert found["org/whole"]["architecture"] == "LlamaForCausalLM" and found["org/whole"]["supported"]
    assert found["org/whole"]["file_bytes"] == (whole / "model.safetensors").stat().st_size
    assert found["org/lacking"]["note"] == "config.json is not in the cache: chairlift pull org/lacking"
    for name in hub:
        if found[name]["supported"]:
            _, facts = shown(capsys, "inspect", name)
            assert facts["num_parameters"] == found[name]["num_parameters"]
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", *found]
    assert lines[-1].split()[1:] == ["hub", "0.4", "MB", "0.1", "M", "LlamaForCausalLM", "F32"]
