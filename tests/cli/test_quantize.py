"""`chairlift quantize`: what it prints, and that the folder computes as what it was made of does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chairlift.cli.main import main
from models.writers import tiny_llama
from text.vocabularies import CORPUS, byte_level_backend, write_tokenizer


def test_a_folder_is_written_and_computes_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_llama(vocab_size=512, tied=True).write_folder(tmp_path / "tiny", "BF16")
    write_tokenizer(model, byte_level_backend())
    (tmp_path / "text").write_text(CORPUS)
    assert main(["quantize", str(model), str(tmp_path / "out"), "--dtype", "int4"]) == 0
    assert f"{tmp_path / 'out'}: tiny in int4, 0.1 MB: chairlift serve" in capsys.readouterr().out

    def report(*argv: object) -> dict[str, Any]:
        assert main(["eval", "perplexity", *map(str, argv), "--text", str(tmp_path / "text"), "--json"]) == 0
        facts: dict[str, Any] = json.loads(capsys.readouterr().out)
        return facts

    facts = report(tmp_path / "out", "--against", model, "--against-dtype", "int4", "--context", 64)
    assert facts["dtype"] == "int4" and facts["kl_mean"] == 0 and facts["same_best_percent"] == 100
    assert main(["quantize", str(model), str(tmp_path / "out")]) == 2
    assert "is there already, and is left as it is" in capsys.readouterr().err
