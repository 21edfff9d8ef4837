"""Channels of GPT-OSS: what is thought and what is said, in every division of the text; and a template of that kind."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.core.structured import StructuredOutputs
from chairlift.grammars.compiling import Vocabulary, compiled, tokenizer_of
from chairlift.text.answers import AnswerReader
from chairlift.text.chat import ChatTemplate
from chairlift.text.grammars import grammar_text
from chairlift.text.harmony import MAX_HEADER_CHARS, HarmonyFormat, HarmonyReader
from chairlift.text.reasoning import REASONING_FORMATS, reasoning_format_of
from chairlift.text.tools import TOOL_FORMATS, ToolReader
from chairlift.text.tools.detect import tool_format_of
from text.assembled import Assembled, places, same_however_cut

HARMONY = REASONING_FORMATS["openai_gptoss"]
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
NEXT = "<|start|>assistant"
LONG = "<|channel|>" + "x" * MAX_HEADER_CHARS


@pytest.mark.parametrize(
    ("begins", "text", "reasoning", "content"),
    [
        (False, f"{ANALYSIS}well<|end|>{NEXT}{FINAL}Yes.", "well", "Yes."),
        (False, f"{ANALYSIS}well<|end|>{NEXT}{FINAL}Yes.<|return|>", "well", "Yes."),
        (False, f"{ANALYSIS}a<|end|>{NEXT}{ANALYSIS}b<|end|>{NEXT}{FINAL}c", "ab", "c"),
        (False, f"{FINAL}Yes <|en", "", "Yes <|en"),
        (False, f"{FINAL}a < b <|endless|>", "", "a < b <|endless|>"),
        (False, f"{ANALYSIS}endless", "endless", ""),
        (False, "Yes.", "", "Yes."),
        (False, "", "", ""),
        (False, "<|chan", "", "<|chan"),
        (False, "<|channel|>analysis", "", ""),
        (True, f"well<|end|>{NEXT}{FINAL}Yes.", "well", "Yes."),
        (False, f"{ANALYSIS}hm<|end|>{NEXT}<|channel|>commentary<|message|>I look.<|end|>", "hm", "I look."),
        (
            False,
            f'{NEXT} to=functions.f<|channel|>commentary <|constrain|>json<|message|>{{"a": 1}}<|call|>',
            "",
            '{"a": 1}',
        ),
        (False, f"{LONG}<|message|>y", "", f"{LONG}<|message|>y"),
        (False, f"{FINAL}one<|end|>two", "", "onetwo"),
        (False, f"{ANALYSIS}{'a' * MAX_HEADER_CHARS}<|end|>{NEXT}{FINAL}b", "a" * MAX_HEADER_CHARS, "b"),
        (False, NEXT, "", ""),
        (False, f"{ANALYSIS}a<|end|>{NEXT}", "a", ""),
        (False, f"{ANALYSIS}a<|end|><", "a", "<"),
    ],
)
def test_division(begins: bool, text: str, reasoning: str, content: str) -> None:
    whole = same_however_cut(lambda: HARMONY.reader(begins=begins), text, [2, 9, 15])
    assert whole == Assembled(content, reasoning)


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.add <|constrain|>json",
        f"{NEXT}<|channel|>commentary to=functions.add<|constrain|>json",
        f"{NEXT} to=functions.add<|channel|>commentary json",
        f"{NEXT} to=functions.add<|channel|>analysis",
    ],
)
@pytest.mark.parametrize("end", ["", "<|call|>", "<|end|>"])
def test_calls_are_read_whatever_the_order_of_their_header(header: str, end: str) -> None:
    """After thought and a remark; and of a function that is not known, the text stays."""

    def reader(*names: str) -> AnswerReader:
        return AnswerReader(HARMONY.reader(begins=False, has_tools=True), ToolReader(TOOL_FORMATS["openai"], names))

    before = f"{ANALYSIS}well<|end|>{NEXT}<|channel|>commentary<|message|>I add.<|end|>"
    if not header.startswith(NEXT):
        before = ""
    text = f'{before}{header}<|message|>{{"a": [1, "<|"]}}{end}'
    remark, thought = ("I add.", "well") if before else ("", "")
    call = ("add", '{"a": [1, "<|"]}')
    assert same_however_cut(lambda: reader("add"), text, [7, 40]) == Assembled(remark, thought, [call])
    unknown = same_however_cut(lambda: reader("sub"), text, [7, 40])
    assert unknown.calls == [] and unknown.content.startswith(f"{remark}<|channel|>commentary to=functions.add")


words = st.sampled_from(
    [*HarmonyFormat().special_texts, "analysis", "final", "assistant", "<|", "<|en", "|>", "<", "a", " ", "\n", "é"]
)


@given(text=st.lists(words, max_size=15).map("".join), cuts=places, begins=st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_text_in_any_pieces_gives_the_same(text: str, cuts: list[int], begins: bool) -> None:
    whole = same_however_cut(lambda: HarmonyReader(begins=begins), text, cuts)
    assert len(whole.content) + len(whole.reasoning) <= len(text)


def test_what_is_thought_is_known_while_it_comes() -> None:
    reader, seen = HarmonyReader(begins=False), []
    for piece in (ANALYSIS, "well", "<|end|>", NEXT + FINAL, "Yes."):
        reader.push(piece)
        seen.append(reader.is_thinking)
    assert seen == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("prompt_end", "begins", "tags"),
    [
        ("<|end|><|start|>assistant", False, (ANALYSIS, FINAL)),
        (f"<|start|>assistant{ANALYSIS}", True, ("", FINAL)),
        (f"<|start|>assistant{FINAL}", False, None),
    ],
)
def test_the_prompt_may_begin_it(prompt_end: str, begins: bool, tags: tuple[str, str] | None) -> None:
    assert HARMONY.begins_after(prompt_end) == begins
    assert HARMONY.tags_before(prompt_end, begins=begins) == tags
    assert not HARMONY.begins_within(f"{ANALYSIS}so far")


SPECIALS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>")
BYTES = [bytes([byte]) for byte in range(256)]


def tokens_of(text: str) -> list[int]:
    """Bytes, and special tokens where they are spelled."""
    parts = re.split("(" + "|".join(map(re.escape, SPECIALS)) + ")", text)
    return [token for part in parts for token in ([256 + SPECIALS.index(part)] if part in SPECIALS else part.encode())]


@pytest.mark.parametrize(
    ("begins", "text", "is_of_that_form"),
    [
        (False, f'{FINAL}{{"a": 1}}', True),
        (False, f'{ANALYSIS}hm {{<|end|>{NEXT}{FINAL}{{"a": 1}}', True),
        (False, f'{ANALYSIS}a<|end|>{NEXT}{ANALYSIS}b<|end|>{NEXT}{FINAL}{{"a": 1}}', True),
        (False, f"{ANALYSIS}a<|end|>{NEXT}<|channel|>commentary<|message|>", False),
        (True, f'hm<|end|>{NEXT}{FINAL}{{"a": 1}}', True),
        (False, '{"a": 1}', False),
        (False, f"{FINAL}Yes.", False),
        (True, f"hm<|end|>{NEXT}{FINAL}Yes.", False),
        (False, f"{ANALYSIS}hm<|return|>", False),
    ],
)
def test_a_form_begins_in_the_final_message(begins: bool, text: str, is_of_that_form: bool) -> None:
    """Whose special tokens are allowed where they belong, though they are no text."""
    tags = HARMONY.tags_before("", begins=begins)
    vocabulary = Vocabulary([*BYTES, *(special.encode() for special in SPECIALS)], [*range(256, 261)], [260])
    matcher = compiled(tokenizer_of(vocabulary, None), grammar_text(StructuredOutputs(json_object=True, after=tags)))
    for token in tokens_of(text):
        if not int.from_bytes(matcher.compute_bitmask(), "little") >> token & 1:
            assert not is_of_that_form
            return
        assert matcher.consume_token(token)
    assert is_of_that_form and int.from_bytes(matcher.compute_bitmask(), "little") >> 260 & 1


TEMPLATE = """
{#- Macros that call each other, namespaces, loop controls, dates, and whitespace control everywhere. -#}
{%- macro kind_of(spec, required) -%}
    {%- if spec.type is string and spec.type == "array" -%}
        {{- kind_of(spec["items"], true) + "[]" if spec["items"] else "any[]" -}}
    {%- elif spec.enum is defined -%}
        {{- '"' + spec.enum | join('" | "') + '"' -}}
    {%- elif spec.type is iterable and spec.type is not string -%}
        {{- spec.type | join(" | ") -}}
    {%- elif spec.type == "object" -%}
        {%- if spec.properties -%}
            {{- "{\\n" -}}
            {%- for name, inner in spec.properties.items() -%}
                {{- name + ("" if name in (spec.required or []) else "?") + ": " + kind_of(inner, false) -}}
                {{- "" if loop.last else ", " -}}
            {%- endfor -%}
            {{- "}" -}}
        {%- else -%}object{%- endif -%}
    {%- else -%}
        {{- {"string": "string", "integer": "number", "number": "number"}.get(spec.type, "any") -}}
    {%- endif -%}
    {%- if spec.nullable -%}{{- " | null" -}}{%- endif -%}
{%- endmacro -%}
{%- macro functions(namespace_name, tools) -%}
    {{- "namespace " + namespace_name + " {\\n" -}}
    {%- for tool in tools -%}
        {%- set function = tool.function -%}
        {{- "// " + function.description | trim + "\\ntype " + function.name + " = (_: " -}}
        {{- kind_of(function.parameters, true) -}}
        {{- ") => any;\\n" -}}
    {%- endfor -%}
    {{- "}\\n" -}}
{%- endmacro -%}
{%- macro system() -%}
    {%- if model_identity is not defined -%}{%- set model_identity = "You are a model." -%}{%- endif -%}
    {{- model_identity + "\\nCurrent date: " + strftime_now("%Y-%m-%d") + "\\n\\n" -}}
    {%- if reasoning_effort is not defined -%}{%- set reasoning_effort = "medium" -%}{%- endif -%}
    {{- "Reasoning: " + reasoning_effort + "\\n" -}}
{%- endmacro -%}
{{- "<|start|>system<|message|>" -}}{{- system() -}}{{- "<|end|>" -}}
{%- set developer, rest = "", messages -%}
{%- if messages[0].role in ("developer", "system") -%}
    {%- set developer, rest = messages[0].content, messages[1:] -%}
{%- endif -%}
{%- if developer or tools -%}
    {{- "<|start|>developer<|message|>" -}}
    {%- if developer -%}{{- "# Instructions\\n\\n" + developer + "\\n" -}}{%- endif -%}
    {%- if tools -%}{{- functions("functions", tools) -}}{%- endif -%}
    {{- "<|end|>" -}}
{%- endif -%}
{%- set last = namespace(name=none) -%}
{%- for message in rest -%}
    {%- if message.role == "assistant" -%}
        {%- if "<|channel|>analysis<|message|>" in (message.content or "") -%}
            {{- raise_exception("channels are written by the template") -}}
        {%- endif -%}
        {%- if message.tool_calls -%}
            {%- set call = message.tool_calls[0].function -%}
            {%- if message.thinking -%}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" -}}
            {%- endif -%}
            {{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary json<|message|>" -}}
            {{- call.arguments | tojson -}}{{- "<|call|>" -}}
            {%- set last.name = call.name -%}
        {%- elif loop.last and not add_generation_prompt -%}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" -}}
        {%- else -%}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" -}}
            {%- set last.name = none -%}
        {%- endif -%}
    {%- elif message.role == "tool" -%}
        {%- if last.name is none -%}{{- raise_exception("a result without a call") -}}{%- endif -%}
        {{- "<|start|>functions." + last.name + " to=assistant<|channel|>commentary<|message|>" -}}
        {{- message.content | tojson + "<|end|>" -}}
    {%- elif message.role == "user" -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|start|>assistant" -}}{%- endif -%}
"""
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "array", "items": {"type": "integer"}},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "zone": {"type": ["string", "null"]},
    },
    "required": ["city"],
}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": " Now. ", "parameters": PARAMETERS}}]


def test_a_template_like_that_of_gpt_oss() -> None:
    """Macros that call themselves, strftime_now, namespaces, tojson, refusals, what a request sets."""
    template = ChatTemplate(TEMPLATE, now=lambda: datetime(2026, 2, 3))
    call = {"type": "function", "id": "c1", "function": {"name": "weather", "arguments": '{"city": "Bärn"}'}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": "", "reasoning_content": "Ask.", "tool_calls": [call]},
        {"role": "tool", "content": '"no"', "tool_call_id": "c1"},
    ]
    assert template.render(messages, tools=TOOLS, kwargs={"reasoning_effort": "high"}) == (
        "<|start|>system<|message|>You are a model.\nCurrent date: 2026-02-03\n\nReasoning: high\n<|end|>"
        "<|start|>developer<|message|># Instructions\n\nBe brief.\nnamespace functions {\n// Now.\n"
        'type weather = (_: {\ncity: string, days?: number[], unit?: "C" | "F", zone?: string | null}) => any;\n}\n'
        "<|end|><|start|>user<|message|>Rain?<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>Ask.<|end|>"
        '<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"city": "Bärn"}<|call|>'
        '<|start|>functions.weather to=assistant<|channel|>commentary<|message|>"\\"no\\""<|end|><|start|>assistant'
    )
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    assert template.render(turns, add_generation_prompt=False).endswith(
        "Reasoning: medium\n<|end|><|start|>user<|message|>Hi<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Hello<|return|>"
    )
    assert reasoning_format_of(template.tool_source) is HARMONY
    assert tool_format_of(template) is TOOL_FORMATS["openai"]
    assert {"reasoning_effort", "model_identity", "tools"} <= template.variables
