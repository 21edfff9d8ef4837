"""A model's text as the server uses it: what its template tells of its manners, and what readers get to see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import InvalidOption, InvalidRequest
from chairlift.core.types import SamplingParams
from chairlift.server.ports import ChatManners, ChatPrompt, ServedText
from chairlift.server.served_text import load_served_text
from chairlift.text import GivenTemplate
from chairlift.text.chat import ChatTemplate
from chairlift.text.reasoning import REASONING_FORMATS, reasoning_format_of
from chairlift.text.tools.detect import tool_format_of
from chairlift.text.tools.mistral import MISTRAL
from chairlift.text.tools.told import INTRODUCTION, told
from text.vocabularies import gguf_of, sentencepiece_metadata

MODEL = "smollm2-135m-instruct"
TURNS = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}{% endfor %}"
TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
USER = [{"role": "user", "content": "hi"}]
FUNCTION = {"name": "get_time", "description": "The time."}


@pytest.fixture(scope="module")
def smollm2() -> ServedText:
    return load_served_text(MODEL, tool_call_parser="json")


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        (TURNS, None, None),
        (TURNS + "<tool_call>", None, None),
        (TOOLS + TURNS, "json", None),
        (TOOLS + TURNS + "{{ '<tool_call>' }}", "hermes", None),
        (TOOLS + TURNS + "{{ '<tool_call>' }}{{ '<think>\n\n</think>' }}", "hermes", "qwen3"),
        (TOOLS + TURNS + "{{ '<tool_call><function=f>' }}", None, None),
        (TOOLS + TURNS + "{{ '<|python_tag|>' }}", "llama3_json", None),
        (TOOLS + TURNS + "{{ '[TOOL_CALLS]' }}{{ '[THINK][/THINK]' }}", "mistral", "mistral"),
    ],
)
def test_a_template_tells_the_manners(template: str, tools: str | None, reasoning: str | None) -> None:
    compiled = ChatTemplate(template)
    calls, thought = tool_format_of(compiled), reasoning_format_of(compiled.tool_source)
    assert (calls and calls.name, thought and thought.name) == (tools, reasoning)


def test_the_operator_may_know_better() -> None:
    source = TOOLS + TURNS + "{{ '<tool_call><think></think>' }}{% if enable_thinking %}on{% endif %}"
    template = GivenTemplate(source)
    off = load_served_text(MODEL, template, tool_call_parser="none", reasoning_parser="none").manners
    assert (off.tool_format, off.reasoning_format, off.auto_tool_choice) == (None, None, True)
    chosen = load_served_text(
        MODEL,
        template,
        tool_call_parser="mistral",
        auto_tool_choice=False,
        reasoning_parser="deepseek_r1",
        template_kwargs={"enable_thinking": True},
    ).manners
    assert (chosen.tool_format, chosen.reasoning_format) == (MISTRAL, REASONING_FORMATS["deepseek_r1"])
    assert not chosen.auto_tool_choice
    assert chosen.template_kwargs == {"enable_thinking": True}
    assert "enable_thinking" in chosen.template_variables
    with pytest.raises(InvalidOption, match="thinking"):
        load_served_text(MODEL, GivenTemplate(TURNS), template_kwargs={"thinking": True})


def test_a_template_without_tools_is_told_in_words(smollm2: ServedText) -> None:
    def rendered(**fields: Any) -> str:
        tokens = smollm2.encode_chat(ChatPrompt(**fields))
        return b"".join(map(smollm2.token_bytes, tokens)).decode()

    tools = [{"type": "function", "function": FUNCTION}]
    text = rendered(messages=USER, tools=tools)
    assert text.startswith("<|im_start|>system\nYou can call functions.")
    assert '{"name": "get_time", "description": "The time."}' in text
    assert "You can call" not in rendered(messages=USER)
    call = {"type": "function", "function": {"name": "get_time", "arguments": '{"zone": "é"}'}, "id": "c1"}
    turns: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        *USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "noon <|im_end|>", "tool_call_id": "c1"},
    ]
    text = rendered(messages=turns, tools=tools)
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou can call functions.")
    assert '<|im_start|>assistant\n{"name": "get_time", "arguments": {"zone": "é"}}<|im_end|>' in text
    assert "<|im_start|>user\nResult of the function: noon " in text
    assert smollm2.encode_chat(ChatPrompt(messages=turns)).count(smollm2.eos_token_ids[0]) == len(turns)


def test_several_calls_are_told_as_a_list() -> None:
    calls = [{"function": {"name": name, "arguments": arguments}} for name, arguments in (("a", {"x": 1}), ("b", None))]
    (message,) = told([{"role": "assistant", "content": "Well.", "tool_calls": calls}], None)
    assert message["content"] == 'Well.\n[{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": {}}]'
    assert told(USER, []) == USER
    assert told(USER, [{"type": "function", "function": FUNCTION}])[0]["content"].startswith(INTRODUCTION)


def test_readers_see_the_special_tokens_that_they_need(smollm2: ServedText) -> None:
    def ids(text: str) -> int:
        return next(token for token in range(100) if smollm2.token_bytes(token) == text.encode())

    tokens = [ids("<repo_name>"), ids("<file_sep>"), *smollm2.encode("a", add_special_tokens=False)]

    def streamed(skip: bool, *shown: str) -> str:
        text = smollm2.streams(SamplingParams(), skip_special_tokens=skip, shown=shown)()
        return text.push(tokens) + text.finish()

    assert streamed(True) == "a"
    assert streamed(True, "<repo_name>") == "<repo_name>a"
    assert streamed(True, "<repo_name>", "[TOOL_CALLS]") == "<repo_name>a"
    assert streamed(False, "<repo_name>") == "<repo_name><file_sep>a"


def test_a_message_is_continued_where_it_ends(smollm2: ServedText) -> None:
    turns = [*USER, {"role": "assistant", "content": "The answer is"}]
    tokens = smollm2.encode_chat(ChatPrompt(messages=turns, add_generation_prompt=False, continue_final_message=True))
    assert b"".join(map(smollm2.token_bytes, tokens)).decode().endswith("<|im_start|>assistant\nThe answer is")


def test_a_template_that_cannot_be_used_refuses_chats_only(tmp_path: Path) -> None:
    metadata = {**sentencepiece_metadata(), "tokenizer.chat_template": "{% if %}"}
    served = load_served_text(str(gguf_of(tmp_path / "a.gguf", metadata)))
    assert served.encode("the dog", add_special_tokens=False) and served.manners == ChatManners(auto_tool_choice=True)
    with pytest.raises(InvalidRequest, match=r"^a.gguf: a chat template does not compile.*: use /v1/completions$"):
        served.encode_chat(ChatPrompt(messages=USER))


def test_a_new_message_begins_without_the_space_of_its_first_word(tmp_path: Path) -> None:
    served = load_served_text(str(gguf_of(tmp_path / "a.gguf", sentencepiece_metadata())))
    tokens = served.encode("the dog", add_special_tokens=False)
    for continues, expected in ((True, " the dog"), (False, "the dog")):
        text = served.streams(SamplingParams(), skip_special_tokens=True, continues=continues)()
        assert "".join(text.push([token]) for token in tokens) + text.finish() == expected
