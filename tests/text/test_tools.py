"""Calls of functions in what models write: every format, in every division, and what is not a call."""

from __future__ import annotations

import itertools
import json
import time
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.text.parts import CallArguments, CallBegin, Content, joined
from chairlift.text.tools import GENERIC, TOOL_FORMATS, ToolReader
from chairlift.text.tools.hermes import HERMES
from chairlift.text.tools.llama3 import LLAMA3
from chairlift.text.tools.mistral import MISTRAL
from chairlift.text.tools.reading import MAX_DEPTH, checked_json
from text.assembled import Assembled, assembled, cut, places, read, same_however_cut

NAMES = ("get_weather", "get_time", "add")
BERN = '{"city": "Bern"}'
CALL = f'{{"name": "get_weather", "arguments": {BERN}}}'
TIME = '{"name": "get_time", "arguments": {}}'
OPENAI = "<|channel|>commentary to=functions."
ONE = [("get_weather", BERN)]
TWO = [("get_weather", BERN), ("get_time", "{}")]


def answer(form: str, text: str, max_calls: int | None = None) -> Assembled:
    return read(ToolReader(TOOL_FORMATS[form], NAMES, max_calls), [text])


# ---------------------------------------------------------------- what is a call

CALLS: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", ONE),
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{TIME}\n</tool_call>\n", "", TWO),
    ("hermes", f"Let me look.\n\n<tool_call>{CALL}</tool_call>", "Let me look.", ONE),
    ("hermes", f"<tool_call>{CALL}</tool_call> That was it. ", "That was it. ", ONE),
    ("hermes", f"<tool_call>{CALL}<tool_call>{TIME}", "", TWO),
    ("hermes", f"<tool_call>{CALL[:-1]}\n</tool_call>\n<tool_call>{TIME}</tool_call>", "", TWO),
    ("hermes", f'<tool_call>{{"arguments": {BERN}, "name": "get_weather"}}</tool_call>', "", ONE),
    ("hermes", f'<tool_call>{{"thought": [1, {{}}], "name": "get_weather", "arguments": {BERN}}}', "", ONE),
    ("hermes", f'<tool_call>{{"name": "get_weather", "arguments": {json.dumps(BERN)}}}</tool_call>', "", ONE),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": null}</tool_call>', "", [("get_time", "{}")]),
    ("hermes", '<tool_call>{"name": "get_time"}</tool_call>', "", [("get_time", "{}")]),
    ("hermes", '<tool_call>{"n\\u0061me": "get\\u005ftime"}</tool_call>', "", [("get_time", "{}")]),
    ("hermes", '<tool_call>{"name":"add","arguments":{"a":"x\ny\t"}}', "", [("add", '{"a":"x\\ny\\t"}')]),
    ("hermes", f"<tool_<tool_call>{CALL}</tool_call>", "<tool_", ONE),
    ("llama3_json", CALL.replace("arguments", "parameters"), "", ONE),
    ("llama3_json", f"\n{CALL}; {TIME}", "", TWO),
    ("llama3_json", f"<|python_tag|>{CALL}", "", ONE),
    ("llama3_json", f"I look it up.<|python_tag|>{CALL}\n{TIME}", "I look it up.", TWO),
    ("llama3_json", '{"type": "function", "name": "get_time", "parameters": {}}', "", [("get_time", "{}")]),
    ("openai", f"{OPENAI}get_weather<|message|>{BERN}<|call|>", "", ONE),
    (
        "openai",
        f"I look. {OPENAI}get_weather<|message|> {BERN} <|call|>\n{OPENAI}get_time<|message|>{{}}",
        "I look.",
        TWO,
    ),
    ("openai", f"<|channel|>{OPENAI}get_time<|message|>{{}}", "<|channel|>", [("get_time", "{}")]),
    ("mistral", f"[TOOL_CALLS][{CALL}, {TIME}]", "", TWO),
    ("mistral", f"[TOOL_CALLS] [{CALL}]", "", ONE),
    ("mistral", f"[TOOL_CALLS]{CALL}", "", ONE),
    ("mistral", f"I see. [TOOL_CALLS]get_weather[ARGS]{BERN}[TOOL_CALLS]get_time[ARGS]{{}}", "I see.", TWO),
    ("mistral", f"[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{BERN}", "", ONE),
    ("mistral", f"[TOOL_CALLS]get_weather{BERN}", "", ONE),
    ("json", CALL, "", ONE),
    ("json", f"[{CALL}, {TIME}]", "", TWO),
    ("json", f"```json\n{CALL}\n```", "", ONE),
    ("json", f"Sure:\n```\n[{CALL},{TIME}]\n```\nDone.", "Sure:Done.", TWO),
    ("json", f"Sure: {CALL} and {TIME}", "Sure:and", TWO),
    ("json", f'{{"a": {CALL}', '{"a": ', ONE),
]


@pytest.mark.parametrize(("form", "text", "content", "calls"), CALLS, ids=lambda value: str(value)[:40])
def test_calls(form: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert same_however_cut(partial(ToolReader, TOOL_FORMATS[form], NAMES), text, [3, 17]) == Assembled(
        content, calls=calls
    )


@pytest.mark.parametrize(("form", "text", "content", "calls"), CALLS, ids=lambda value: str(value)[:40])
def test_a_call_that_may_not_be_made_is_text(form: str, text: str, content: str, calls: object) -> None:
    """Nothing is lost: not even white space."""
    assert read(ToolReader(TOOL_FORMATS[form], ()), [text]) == Assembled(text)


@pytest.mark.parametrize(("form", "text", "content", "calls"), CALLS, ids=lambda value: str(value)[:40])
def test_at_most_one_call(form: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert answer(form, text, 1) == Assembled(content, calls=calls[:1])


# ---------------------------------------------------------------- what is none

TEXTS = [
    *("", " ", "\n\n", "Hello.", " a\n b ", "{", "}", "[", "[]", "{}", "{ x", '{"', '{"a"', "<", "<tool_call"),
    *("<tool_call>", "<tool_call></tool_call>", "</tool_call>", "<tool_call>[]</tool_call>", "<<<<<tool_call>"),
    *("[TOOL_CALLS]", "[TOOL_CALLS][]", "[TOOL_CALLS]nobody[ARGS]{}", "[TOOL_CALLS]add[ARGS]", "[TOOL_CALLS]add[AR"),
    *("[TOOL_CALLS]add 5", "[TOOL_CALLS]add[ARGS][1]", "[TOOL_CALLS]add[CALL_ID]x{}", "[TOOL_CALLS]" + "a" * 500),
    *("<|python_tag|>", "<|python_tag|>brave_search.call(query='x')", "<|python_tag|>{}"),
    *("`", "```", "```json\n", "```json\n5\n```"),
    *(f"<tool_call>{text}</tool_call>" for text in (
        "{}", "5", '{"name": 5}', '{"name": "nobody", "arguments": {}}', '{"name": ["add"], "arguments": {}}',
        '{"name": "add", "arguments": 5}', '{"name": "add", "arguments": [1]}', '{"name": "add", "arguments": "x"}',
        '{"name": "add", "arguments": "{"}', '{"name": "add", "arguments": "{} {}"}', '{"name": "add" "a": {}}',
        '{"name": "add", "arguments": "{\\"a\\": \\"\\ud800\\"}"}',
        '{"name": "add",}', "{'name': 'add', 'arguments': {}}", '{"name": "add", "name": "add"}', '{"name": "\\x"}',
        '{"name": "\\u00g0"}', '{"arguments": {}}', '{"arguments": {}, "parameters": {}, "name": "add"}',
        '{"name": "add", "arguments": "{\\"a\\": \\"\\\\ud800\\"}" 5', '{"x": 01, "name": "add"}',
        '{"x": ' + "[" * (MAX_DEPTH + 1), '{"x": tru, "name": "add"}', '{"name": "add", "arguments": "',
    )),
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:50])
@pytest.mark.parametrize("form", TOOL_FORMATS)
def test_what_is_malformed_is_content(form: str, text: str) -> None:
    whole = same_however_cut(partial(ToolReader, TOOL_FORMATS[form], NAMES), text, [5, 11])
    assert whole == Assembled(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "add"}',
        '{"more": 1, "name": "add", "arguments": {}}',
        'I would write {"name": "add", "arguments": {}} for that.',
        '{"name": "nobody", "arguments": {}}',
    ],
)
def test_json_is_a_call_only_if_it_looks_like_nothing_else(text: str) -> None:
    assert answer("llama3_json", text) == Assembled(text)


def test_broken_off_before_the_name_it_is_text_and_afterwards_a_call() -> None:
    text = f"<tool_call>{CALL}"
    for end in range(len(text)):
        cut_off = answer("hermes", text[:end])
        if end <= text.index(BERN):
            assert cut_off == Assembled(text[:end])
        else:
            assert cut_off == Assembled(calls=[("get_weather", BERN[: end - text.index(BERN)])])


def test_broken_within_its_arguments_it_ends_there_and_the_rest_is_text() -> None:
    assert answer("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1, b}}</tool_call>') == Assembled(
        "b}}</tool_call>", calls=[("add", '{"a": 1, ')]
    )


# ---------------------------------------------------------------- streaming


def test_arguments_come_as_they_are_written() -> None:
    reader = ToolReader(HERMES, NAMES)
    assert reader.push("Well. <tool") == [Content("Well.")]
    assert reader.push('_call>{"name": "add", "argu') == []
    assert reader.push('ments": {"a') == [CallBegin(0, "add"), CallArguments(0, '{"a')]
    assert reader.push('": "12') == [CallArguments(0, '": "12')]
    assert reader.push('3"}') == [CallArguments(0, '3"}')]
    assert reader.push("}</tool_call") == []
    assert reader.push(">") == []
    assert reader.finish() == []
    assert reader.num_calls == 1


@pytest.mark.parametrize("form", [HERMES, MISTRAL, GENERIC])
def test_ordinary_text_is_not_held_back(form: Any) -> None:
    reader = ToolReader(form, NAMES)
    assert reader.push("Once upon") == [Content("Once upon")]
    assert reader.push(" a") == [Content(" a")]


# ---------------------------------------------------------------- anything

words = st.sampled_from(
    [
        *('<tool_call>', '</tool_call>', '[TOOL_CALLS]', '[ARGS]', '[CALL_ID]', '<|python_tag|>', '```', '```json\n'),
        *('{"name": "add", ', '"arguments": ', '"parameters": ', '{"a": 1}', '{', '}', '[', ']', ',', ';'),
        *('"', '\\', ':', 'add', '"name"', ' ', '\n', 'é', '日本', CALL, TIME, '1.5e', 'null', '"\\u00e9"', '<', '`'),
    ]
)  # fmt: skip
texts = st.lists(words, max_size=25).map("".join) | st.text(max_size=60)


@pytest.mark.parametrize("form", TOOL_FORMATS)
@given(text=texts, cuts=places)
@settings(max_examples=60, deadline=None)
def test_any_text_in_any_pieces_gives_the_same(form: str, text: str, cuts: list[int]) -> None:
    whole = same_however_cut(partial(ToolReader, TOOL_FORMATS[form], NAMES), text, cuts)
    assert {name for name, _ in whole.calls} <= set(NAMES)
    if not whole.calls:
        assert whole.content == text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
written = {
    HERMES: lambda text, name, arguments: f'{text}<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n',
    LLAMA3: lambda text, name, arguments: f'{text}<|python_tag|>{{"name": "{name}", "parameters": {arguments}}}',
    MISTRAL: lambda text, name, arguments: f"{text}[TOOL_CALLS]{name}[ARGS]{arguments}",
    GENERIC: lambda text, name, arguments: f'{text}{{"name": "{name}", "arguments": {arguments}}}',
}  # fmt: skip


@pytest.mark.parametrize("form", written, ids=lambda form: str(form.name))
@given(
    text=st.text(st.characters(exclude_characters="<[{`"), max_size=20),
    name=st.sampled_from(NAMES),
    arguments=st.dictionaries(st.text(max_size=6), json_values, max_size=4),
    cuts=places,
    ascii_only=st.booleans(),
    indent=st.none() | st.integers(0, 2),
)
@settings(max_examples=40, deadline=None)
def test_any_arguments_arrive_as_they_were_written(
    form: Any, text: str, name: str, arguments: dict[str, Any], cuts: list[int], ascii_only: bool, indent: int | None
) -> None:
    spelled = json.dumps(arguments, ensure_ascii=ascii_only, indent=indent)
    whole = same_however_cut(partial(ToolReader, form, NAMES), written[form](text, name, spelled), cuts)
    assert whole == Assembled(text.rstrip(), calls=[(name, spelled)])
    assert json.loads(whole.calls[0][1]) == arguments


@given(json_values)
@settings(deadline=None)
def test_json_is_known_when_it_is_seen(value: Any) -> None:
    text = json.dumps(value)
    assert checked_json(text) == text
    assert checked_json(text + " x") is None
    assert checked_json(text + ",") is None


@pytest.mark.parametrize("form", TOOL_FORMATS)
@pytest.mark.parametrize(
    "unit", ["<tool_call>", "[TOOL_CALLS][", '{"name":', " ", "\\", '"', "`", "<", "[", '{"a":', CALL + ";", "a"]
)
def test_what_a_text_costs_grows_with_its_length_only(form: str, unit: str) -> None:
    """Twenty thousand characters of the worst kinds, each pushed by itself: a microsecond or two each."""
    text = f'<tool_call>[TOOL_CALLS]<|python_tag|>{{"name": "add", "arguments": {{"a": "{unit * (20_000 // len(unit))}'
    for whole in (text, unit * (20_000 // len(unit))):
        reader = ToolReader(TOOL_FORMATS[form], NAMES)
        began = time.process_time()
        for character in whole:
            reader.push(character)
        reader.finish()
        assert time.process_time() - began < 1.0


@given(text=texts, cuts=places)
@settings(max_examples=60, deadline=None)
def test_joined_parts_say_the_same(text: str, cuts: list[int]) -> None:
    reader = ToolReader(HERMES, NAMES)
    parts = [part for piece in cut(text, cuts) for part in reader.push(piece)] + reader.finish()
    whole = joined(parts)
    assert assembled(whole) == assembled(parts)
    for one, other in itertools.pairwise(whole):
        assert type(one) is not type(other) or isinstance(one, CallBegin)
