"""Dividing thought from content, in every division of the text."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.text.answers import AnswerReader
from chairlift.text.parts import CallBegin, Content, Reasoning
from chairlift.text.reasoning import MAX_SPACES, REASONING_FORMATS
from chairlift.text.tools import TOOL_FORMATS, ToolReader
from text.assembled import Assembled, places, read, same_however_cut

QWEN, R1 = REASONING_FORMATS["qwen3"], REASONING_FORMATS["deepseek_r1"]
LONG = " " * (MAX_SPACES + 5)


@pytest.mark.parametrize(
    ("begins", "text", "reasoning", "content"),
    [
        (False, "<think>\nwell\n</think>\n\nYes.", "well", "Yes."),
        (False, "\n<think>well</think>Yes.", "well", "Yes."),
        (False, "<think>\n\n</think>\n\nYes.\n", "", "Yes.\n"),
        (False, "Yes.", "", "Yes."),
        (False, "Yes <think>no</think>", "", "Yes <think>no</think>"),
        (False, "", "", ""),
        (False, "  ", "", "  "),
        (False, "<thi", "", "<thi"),
        (False, "<think>a < b </thin </think>c</think>", "a < b </thin", "c</think>"),
        (False, "<think>endless \n", "endless \n", ""),
        (False, "<think>half </thi", "half </thi", ""),
        (True, "well</think>Yes.", "well", "Yes."),
        (True, "\nwell\n</think>\nYes.", "well", "Yes."),
        (True, "<think>well</think>Yes.", "well", "Yes."),
        (True, "</think>Yes.", "", "Yes."),
        (True, "no end", "no end", ""),
        (True, "<thi", "<thi", ""),
        (False, f"{LONG}<think>x</think>", "", f"{LONG}<think>x</think>"),
        (False, f"<think>{LONG}x{LONG}</think>{LONG}y", "x" + " " * 5, "y"),
    ],
)
def test_division(begins: bool, text: str, reasoning: str, content: str) -> None:
    whole = same_however_cut(lambda: QWEN.reader(begins=begins), text, [2, 9])
    assert whole == Assembled(content, reasoning)


@pytest.mark.parametrize(
    ("prompt_end", "qwen", "r1"),
    [
        ("<|im_start|>assistant\n", False, True),
        ("<|im_start|>assistant\n<think>\n", True, True),
        ("<think>\n\n</think>\n\n", False, False),
        ("", False, True),
    ],
)
def test_the_prompt_may_open_or_close_it(prompt_end: str, qwen: bool, r1: bool) -> None:
    assert (QWEN.begins_after(prompt_end), R1.begins_after(prompt_end)) == (qwen, r1)


words = st.sampled_from(
    ["<think>", "</think>", "<think", "</thi", "nk>", "<", "</", "a", " ", "\n", "é", LONG, "\u2003"]
)


@given(text=st.lists(words, max_size=15).map("".join), cuts=places, begins=st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_text_in_any_pieces_gives_the_same(text: str, cuts: list[int], begins: bool) -> None:
    whole = same_however_cut(lambda: QWEN.reader(begins=begins), text, cuts)
    if "<think>" not in text and not begins:
        assert whole == Assembled(text)


@pytest.mark.parametrize("form", TOOL_FORMATS)
@given(
    text=st.lists(
        words | st.sampled_from(["<tool_call>", "[TOOL_CALLS]", '{"name": "f", "arguments": {"a": "b"}}']), max_size=12
    ).map("".join),
    cuts=places,
    begins=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_thought_and_calls_in_any_pieces(form: str, text: str, cuts: list[int], begins: bool) -> None:
    def make() -> AnswerReader:
        return AnswerReader(QWEN.reader(begins=begins), ToolReader(TOOL_FORMATS[form], ["f"]))

    same_however_cut(make, text, cuts)


def test_thought_is_not_searched_for_calls_and_counted() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    reader = AnswerReader(QWEN.reader(begins=False), ToolReader(TOOL_FORMATS["hermes"], ["f"]))
    parts = [part for piece in ("<think>", "I call", call, "</think>", "\n\n", call) for part in reader.push(piece, 1)]
    assert parts[:2] == [Reasoning("I call"), Reasoning(call)]
    assert parts[2] == CallBegin(0, "f")
    assert reader.num_reasoning_tokens == 4
    assert reader.num_calls == 1


def test_without_anything_to_find_text_is_content() -> None:
    reader = AnswerReader(None, None)
    assert reader.push("<think>") == [Content("<think>")]
    assert reader.push("") == []
    assert reader.finish() == []
    assert read(AnswerReader(None, None), ["a", "b"]) == Assembled("ab")
    make = partial(AnswerReader, R1.reader(begins=True))
    assert read(make(None), ["a", "</think>", "b"]) == Assembled("b", "a")
