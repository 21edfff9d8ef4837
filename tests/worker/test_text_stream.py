"""The text of an answer, as the worker begins it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chairlift.core.types import CacheShape, Request, SamplingParams
from chairlift.models import ModelFiles
from chairlift.text import load_text
from fake_built import built
from fakes import FakeExecutor
from text.vocabularies import gguf_of, sentencepiece_metadata


@pytest.mark.parametrize(("end", "expected"), [("", "the dog"), ("</s>", "the dog"), ("a", " the dog")])
def test_an_answer_after_a_special_token_is_a_text_of_its_own(tmp_path: Path, end: str, expected: str) -> None:
    path = gguf_of(tmp_path / "a.gguf", sentencepiece_metadata())
    text = load_text(ModelFiles("a", path, "gguf"))
    whole = replace(built(FakeExecutor(CacheShape(128, 4))), text=text)
    prompt = text.tokenizer.encode(end, add_special_tokens=False, allow_special=True)
    stream = whole.text_stream(Request(id=1, prompt=prompt, params=SamplingParams(), arrival=0.0))
    tokens = text.tokenizer.encode("the dog", add_special_tokens=False)
    assert stream.push(tokens) + stream.finish() == expected
