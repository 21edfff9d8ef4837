"""`chairlift eval perplexity`: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chairlift.cli.main import main
from models.writers import TinyLlama, tiny_llama
from text.vocabularies import CORPUS, SPECIALS, byte_level_backend, with_beginning, write_tokenizer


def tiny_folder(folder: Path, backend: Any, seed: int = 0) -> Path:
    tiny: TinyLlama = tiny_llama(seed, vocab_size=512, max_model_len=128, tied=True)
    tiny.write_folder(folder)
    write_tokenizer(folder, backend, {"bos_token": "<s>", "eos_token": "</s>"})
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("made") / "tiny", with_beginning(byte_level_backend(), "<s>"))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "text.txt"
    path.write_text(CORPUS)
    return path


def evaluated(capsys: pytest.CaptureFixture[str], *argv: object) -> Any:
    assert main(["eval", "perplexity", *map(str, argv), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_precision_against_another(model: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = evaluated(capsys, model, "--text", text, "--against", "float32", "--context", 64)
    assert facts["model"] == "tiny" == facts["against"]
    assert facts["dtype"] == "int8" and facts["against_dtype"] == "float32"
    assert facts["predictions"] == facts["tokens"] > 80  # the first token has the beginning before it
    assert facts["context"] == 64 and facts["stride"] == 63
    assert 0 < facts["kl_mean"] < facts["kl_p99"] and 60 < facts["same_best_percent"] <= 100
    change = 100 * (facts["perplexity"] / facts["against_perplexity"] - 1)
    assert facts["perplexity_change_percent"] == pytest.approx(change, abs=1e-6)
    assert main(["eval", "perplexity", str(model), "--text", str(text), "--dtype", "auto", "--max-tokens", "20"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("tiny in auto: 20 of 20 tokens predicted, in windows of 128, 127 apart")


def test_another_model(model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tiny_folder(tmp_path / "other", with_beginning(byte_level_backend(), "<s>"), seed=1)
    facts = evaluated(capsys, model, "--text", text, "--against", other, "--dtype", "float32", "--max-tokens", 60)
    assert facts["against"] == "other" and facts["kl_mean"] > 1
    foreign = tiny_folder(tmp_path / "foreign", byte_level_backend(SPECIALS, 400))
    assert main(["eval", "perplexity", str(model), "--text", str(text), "--against", str(foreign)]) == 2
    assert "foreign cuts the text into other tokens than tiny" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--context", "129"], "context is 129, but the model was made for 128 tokens"),
        (["--context", "1"], "nothing would be predicted"),
        (["--stride", "128"], "stride is 128, but must be 1 to 127"),
        (["--against", "float16"], "model 'float16' not found"),
        (["--against", "int8", "--against-dtype", "int8"], "against_dtype is the precision of the model"),
        (["--dtype", "float32", "--kv-cache-dtype", "bfloat16"], "bfloat16 key/value cache is not possible"),
    ],
)
def test_refused(model: Path, text: Path, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "perplexity", str(model), "--text", str(text), *argv]) == 2
    assert message in capsys.readouterr().err


def test_no_text(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for content, message in ((b"", "has 0 tokens: nothing to predict"), (b"\xff", "is not text in UTF-8")):
        path = tmp_path / "text"
        path.write_bytes(content)
        assert main(["eval", "perplexity", str(model), "--text", str(path)]) == 2
        assert message in capsys.readouterr().err
    assert main(["eval", "perplexity", str(model), "--text", str(tmp_path / "missing")]) == 2
    assert "missing: No such file" in capsys.readouterr().err
