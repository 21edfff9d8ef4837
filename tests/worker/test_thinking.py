"""Chats with models that think, in a program: what is thought is told apart from what is said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fakes
from chairlift import LLM, AsyncLLM, SamplingParams
from chairlift.core.structured import StructuredOutputs
from chairlift.core.types import CacheShape, Request
from chairlift.models import ModelFiles
from chairlift.text import load_text
from chairlift.text.harmony import ANALYSIS, FINAL, SPECIAL_TEXTS
from chairlift.worker.build import Built
from fake_built import built
from fakes import FakeExecutor
from text.vocabularies import byte_level_backend, write_tokenizer

USER = [{"role": "user", "content": "Hi"}]
TURNS = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
TEMPLATES = {
    "harmony": TURNS + "<|start|>assistant{% if false %}<|channel|>{% endif %}",
    "special": TURNS + "{% if false %}[THINK][/THINK]{% endif %}",
    "opened": TURNS + "<think>\n{% if false %}</think>{% endif %}",
    "silent": TURNS,
}
SAID = {
    "harmony": f"{ANALYSIS}They greet me.<|end|><|start|>assistant{FINAL}Hello!<|return|>",
    "special": "[THINK]They greet me.[/THINK]Hello!</s>",
    "opened": "They greet me.\n</think>\n\nHello!</s>",
    "silent": "They greet me.\nHello!</s>",
}
PARTS = dict.fromkeys(SAID, ("They greet me.", "Hello!")) | {"silent": ("", "They greet me.\nHello!")}


@pytest.fixture
def thinker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Built]:
    """A model of a kind, on a device that says the same to everybody."""

    def make(kind: str) -> Built:
        end = "<|return|>" if kind == "harmony" else "</s>"
        write_tokenizer(
            tmp_path,
            byte_level_backend((*SPECIAL_TEXTS, "[THINK]", "[/THINK]", "</s>")),
            {"eos_token": end, "chat_template": TEMPLATES[kind]},
        )
        text = load_text(ModelFiles("a", tmp_path, "folder"))
        said: dict[tuple[int, int], Iterator[int]] = {}

        def sampled(cell: int, request: Request, choice: int) -> int:
            tokens = text.tokenizer.encode(SAID[kind], add_special_tokens=False, allow_special=True)
            return next(said.setdefault((request.id, choice), iter(tokens)))

        monkeypatch.setattr(fakes, "sampled", sampled)
        return replace(built(FakeExecutor(CacheShape(128, 4))), text=text)

    return make


@pytest.mark.parametrize("kind", SAID)
def test_a_chat_is_told_in_two(thinker: Callable[[str], Built], kind: str) -> None:
    with LLM.from_built(thinker(kind)) as llm:
        (whole,) = llm.chat(USER, n=2, use_tqdm=False)
        assert [(one.reasoning, one.text) for one in whole.outputs] == [PARTS[kind]] * 2
        pieces = [piece for output in llm.stream_chat(USER) for piece in output.outputs]
        assert ("".join(one.reasoning for one in pieces), "".join(one.text for one in pieces)) == PARTS[kind]
        assert [token for piece in pieces for token in piece.token_ids] == whole.outputs[0].token_ids


def test_coroutines_are_told_so_too(thinker: Callable[[str], Built]) -> None:
    async def main() -> tuple[str, str]:
        async with AsyncLLM.from_built(thinker("harmony")) as llm:
            pieces = [piece async for output in llm.chat(USER) for piece in output.outputs]
        return "".join(one.reasoning for one in pieces), "".join(one.text for one in pieces)

    assert asyncio.run(main()) == PARTS["harmony"]


def test_what_goes_on_with_a_text_is_not_read(thinker: Callable[[str], Built]) -> None:
    with LLM.from_built(thinker("special")) as llm:
        (output,) = llm.generate("Hi", SamplingParams(), use_tqdm=False)
        assert (output.outputs[0].reasoning, output.outputs[0].text) == ("", "They greet me.Hello!")


@pytest.mark.parametrize(
    ("kind", "after"),
    [
        ("harmony", (ANALYSIS, FINAL)),
        ("opened", ("", "</think>")),
        ("special", ("[THINK]", "[/THINK]")),
        ("silent", None),
    ],
)
def test_a_form_comes_after_the_thought(
    thinker: Callable[[str], Built], kind: str, after: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[SamplingParams] = []
    whole = thinker(kind)
    say = fakes.sampled

    def sampled(cell: int, request: Request, choice: int) -> int:
        seen.append(request.params)
        return say(cell, request, choice)

    monkeypatch.setattr(fakes, "sampled", sampled)
    params = SamplingParams(structured_outputs=StructuredOutputs(json_object=True))
    with LLM.from_built(whole) as llm:
        llm.chat(USER, params, use_tqdm=False)
        assert {one.structured_outputs and one.structured_outputs.after for one in seen} == {after}
        seen.clear()
        llm.generate("Hi", params, use_tqdm=False)
        assert {one.structured_outputs and one.structured_outputs.after for one in seen} == {None}
