"""What an engine says while it is put together."""

from __future__ import annotations

from pathlib import Path

import pytest

from chairlift.core.errors import InvalidOption
from chairlift.worker.build import load
from chairlift.worker.options import EngineOptions
from models.writers import tiny_llama
from text.vocabularies import byte_level_backend, write_tokenizer


def test_a_context_that_the_cache_cuts_is_said_and_one_that_was_asked_for_is_not_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = tiny_llama(vocab_size=512, tied=True)
    folder = str(tiny.write_folder(tmp_path / "tiny"))
    write_tokenizer(Path(folder), byte_level_backend())

    def loaded_len(kv_cache_memory_bytes: int, max_model_len: int | None = None) -> int:
        options = EngineOptions(
            model=folder,
            max_num_seqs=2,
            max_num_batched_tokens=16,
            dtype="float32",
            kv_cache_memory_bytes=kv_cache_memory_bytes,
            max_model_len=max_model_len,
        )
        loaded = load(options)
        loaded.grammars.close()
        return loaded.limits.max_model_len

    whole = tiny.config["max_position_embeddings"]
    assert loaded_len(16 << 20) == whole
    assert "cut" not in capsys.readouterr().err
    cut = loaded_len(80 << 10)
    assert 0 < cut < whole
    line = f"the context of tiny is cut from {whole} tokens to the {cut} that its cache holds: kv_cache_memory_bytes"
    assert capsys.readouterr().err.count(line) == 1
    with pytest.raises(InvalidOption, match=f"max_model_len is {whole}"):
        loaded_len(80 << 10, whole)
    assert loaded_len(80 << 10, cut) == cut
