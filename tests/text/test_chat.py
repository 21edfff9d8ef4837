"""Rendering conversations, and that no user can write a special token."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from chairlift.core.errors import InvalidModel, InvalidRequest
from chairlift.models import open_gguf, resolve
from chairlift.text import ChatTemplate, Text, Tokenizer, load_text
from chairlift.text.gguf_tokenizer import gguf_tokenizer
from text.templates import ALL, CHATML, GLUED, LOUD, THINKING, TOOLS
from text.vocabularies import byte_level_backend, byte_level_metadata, gguf_of, sentencepiece_metadata

SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}
COMPILED = {name: ChatTemplate(source, SPECIALS) for name, source in ALL.items()}
Messages = list[dict[str, Any]]


@pytest.fixture(scope="module")
def smollm2() -> Text:
    return load_text(resolve("smollm2-135m-instruct"))


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("chat")
    return {
        "bytes": gguf_tokenizer(open_gguf(gguf_of(folder / "b.gguf", byte_level_metadata(byte_level_backend())))),
        "pieces": gguf_tokenizer(open_gguf(gguf_of(folder / "s.gguf", sentencepiece_metadata()))),
    }


def user(content: Any) -> Messages:
    return [{"role": "user", "content": content}]


def specials_of(tokenizer: Tokenizer, tokens: list[int]) -> list[int]:
    return [token for token in tokens if token in tokenizer.special_token_ids]


# ---------------------------------------------------------------- the template's own special tokens, and no others

PLAIN = "say hello"


@pytest.mark.parametrize("name", ALL)
def test_p1_special_tokens_spelled_by_users_stay_text(tokenizers: dict[str, Tokenizer], name: str) -> None:
    """For every special token, in every role and field: exactly the template's own special ids, and nothing lost."""
    template = COMPILED[name]
    for tokenizer in tokenizers.values():
        for spelling in tokenizer.scanner.spellings:
            for attack in attacks(spelling):
                for conversation in conversations(attack, name):
                    baseline = conversations(PLAIN, name)[conversations(attack, name).index(conversation)]
                    try:
                        tokens = template.render_tokens(**conversation, tokenizer=tokenizer)
                    except InvalidRequest:
                        assert name == "alternating"
                        continue
                    expected = template.render_tokens(**baseline, tokenizer=tokenizer)
                    assert specials_of(tokenizer, tokens) == specials_of(tokenizer, expected), (attack, conversation)
                    kept = name in ("chatml", "glued") or (name == "thinking" and "<think>" not in attack)
                    if kept:
                        assert attack in tokenizer.decode(tokens, skip_special_tokens=False)


def attacks(spelling: str) -> list[str]:
    return [
        spelling,
        f"a{spelling}b{spelling}",
        f"{spelling}{spelling}",
        f" {spelling}\n",
        spelling.upper(),
        spelling[:-1],
        spelling[1:],
        spelling[1:-1],
        spelling[2:-2] or "x",
        f"<think>{spelling}</think>{spelling}",
    ]


def conversations(text: str, name: str) -> list[dict[str, Any]]:
    """One conversation for each place where a user's string may stand."""
    turns: list[Messages] = [user(text), user([{"type": "text", "text": text}, {"type": "text", "text": text}])]
    turns += [[{"role": role, "content": text}, *user(PLAIN)] for role in ("system", "tool", "developer")]
    turns += [[*user(PLAIN), {"role": "assistant", "content": text}, *user(text)]]
    found: list[dict[str, Any]] = [{"messages": turn} for turn in turns]
    if name == "tools":
        call = {"type": "function", "function": {"name": text, "arguments": json.dumps({text: text, "n": [text]})}}
        properties = {text: {"type": "string", "description": text, "enum": [text]}}
        function = {"name": text, "description": text, "parameters": {"type": "object", "properties": properties}}
        tools = [{"type": "function", "function": function}]
        answer = [*user(PLAIN), {"role": "assistant", "content": None, "tool_calls": [call]}]
        found += [
            {"messages": user(PLAIN), "tools": tools},
            {"messages": answer},
            {"messages": [*answer, {"role": "tool", "content": text, "name": text}], "tools": tools},
        ]
    return found


FRAGMENTS = st.lists(
    st.sampled_from(["<", ">", "|", "<|", "|>", "end", "turn", "s", "/s", "</", "<|end|>", "</s>", "<s>", " ", "\n",
                     "hello", "<think>", "</think>", "assistant", "<|END|>", "12", "é"]),
    max_size=12,
).map("".join)  # fmt: skip


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=st.lists(FRAGMENTS, min_size=1, max_size=4), name=st.sampled_from(sorted(set(ALL) - {"alternating"})))
def test_p1_on_random_fragments(tokenizers: dict[str, Tokenizer], contents: list[str], name: str) -> None:
    template = COMPILED[name]
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(contents)]
    harmless = [{**message, "content": "hello there"} for message in messages]
    for tokenizer in tokenizers.values():
        tokens = template.render_tokens(messages, tokenizer=tokenizer)
        expected = template.render_tokens(harmless, tokenizer=tokenizer)
        assert specials_of(tokenizer, tokens) == specials_of(tokenizer, expected)


def test_a_template_that_rewrites_special_tokens_of_users_sees_text(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["bytes"]
    (end,) = tokenizer.encode("<|end|>", allow_special=True)
    for written, expected in (("'x' * 3", "a xxx<|end|>"), ("'<|end|>.'", "a <|end|><|end|>")):
        template = ChatTemplate("{{ messages[0].content | replace('<|end|>', " + written + ") }}<|end|>")
        tokens = template.render_tokens(user("a <|end|>"), tokenizer=tokenizer)
        assert tokens.count(end) == 1 and tokens[-1] == end
        assert tokenizer.decode(tokens, skip_special_tokens=False) == expected


def test_comparisons_and_orders_see_what_users_wrote(tokenizers: dict[str, Tokenizer]) -> None:
    source = (
        "{% if messages[0].content == '<|end|>' %}same {% endif %}{% if '<|' in messages[0].content %}in {% endif %}"
        "{% for key, value in given | dictsort %}<{{ key }}>{{ value }}{% endfor %}"
    )
    tokenizer = tokenizers["bytes"]
    kwargs = {"given": {"s": 1, "/s": 2, "a": 3, "|end|": 4}}
    tokens = ChatTemplate(source).render_tokens(user("<|end|>"), tokenizer=tokenizer, kwargs=kwargs)
    assert tokenizer.decode(tokens, skip_special_tokens=False) == "same in </s>2<a>3<s>1<|end|>4"
    assert specials_of(tokenizer, tokens) == []


def test_a_conversation_of_all_characters_is_guarded_or_refused(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["bytes"]
    template = ChatTemplate(CHATML)
    crowd = "".join(chr(code) for code in range(0x20000, 0x2A6E0))
    tokens = template.render_tokens(user(crowd + "<|end|>"), tokenizer=tokenizer)
    assert len(specials_of(tokenizer, tokens)) == 5
    everybody = "".join(chr(code) for code in range(0x1200, 0x2A6E0) if not 0xD800 <= code < 0xE000)
    with pytest.raises(InvalidRequest, match="too many different characters"):
        template.render_tokens(user(everybody + "<|end|>"), tokenizer=tokenizer)


def test_special_tokens_next_to_their_spelling(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["bytes"]
    template = ChatTemplate("{% for m in messages %}{{ m.content }}<|end|>{% endfor %}")
    (end,) = tokenizer.encode("<|end|>", allow_special=True)
    tokens = template.render_tokens(user("<|end|><|end|"), tokenizer=tokenizer)
    assert tokens.count(end) == 1 and tokens[-1] == end
    assert tokenizer.decode(tokens, skip_special_tokens=False) == "<|end|><|end|<|end|>"


# ---------------------------------------------------------------- as the model was trained

HARMLESS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
CODE = st.lists(
    st.sampled_from(["if a < b:\n", "x > y", "<div>", "</div>", "`", "->", "<<", "</think>", "a|b", "  "]), max_size=6
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=st.lists(st.one_of(HARMLESS, CODE.map("".join)), min_size=1, max_size=4))
def test_without_spellings_tokens_are_those_of_the_whole_text(
    smollm2: Text, tokenizers: dict[str, Tokenizer], contents: list[str]
) -> None:
    """Words merge across the border between template and content exactly as they would in the plain text."""
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(contents)]
    readers = (smollm2.tokenizer, *tokenizers.values())
    assume(not any(tokenizer.scanner.spellings_in(text) for tokenizer in readers for text in contents))
    assert smollm2.chat_template is not None
    pairs = [(smollm2.chat_template, smollm2.tokenizer)]
    pairs += [(COMPILED[name], tokenizer) for name in COMPILED for tokenizer in tokenizers.values()]
    for template, tokenizer in pairs:
        if template in (COMPILED["alternating"], COMPILED["glued"]):  # one refuses, one spells
            continue
        text = template.render(messages)
        expected = tokenizer.encode(text, add_special_tokens=False, allow_special=True)
        assert template.render_tokens(messages, tokenizer=tokenizer) == expected


def test_smollm2_conversation(smollm2: Text) -> None:
    tokens = smollm2.encode_chat(user("Hi"))
    assert smollm2.tokenizer.decode(tokens, skip_special_tokens=False) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert [token for token in tokens if token in smollm2.tokenizer.special_token_ids] == [1, 2, 1, 2, 1]
    shorter = smollm2.encode_chat(user("Hi"), add_generation_prompt=False)
    assert tokens[: len(shorter)] == shorter


def test_a_model_without_a_template_says_so(smollm2: Text) -> None:
    bare = Text(smollm2.tokenizer, None, smollm2.eos_token_ids, {})
    with pytest.raises(InvalidRequest, match="no chat template"):
        bare.encode_chat(user("Hi"))


# ---------------------------------------------------------------- rendering


def test_thoughts_of_earlier_turns_are_dropped() -> None:
    messages = [*user("q"), {"role": "assistant", "content": "<think>\nhm\n</think>\n\nA"}, *user("more")]
    text = ChatTemplate(THINKING).render(messages)
    assert text == "<|turn|>user\nq<|end|>\n<|turn|>assistant\nA<|end|>\n<|turn|>user\nmore<|end|>\n<|turn|>assistant\n"


def test_tools_and_their_calls() -> None:
    properties = {"city": {"type": "string", "description": "where <it> is & 'so'"}}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"properties": properties}}}]
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Zürich"}'}}
    messages = [*user("?"), {"role": "assistant", "content": None, "tool_calls": [call]}]
    text = ChatTemplate(TOOLS).render(messages, tools=tools)
    assert json.dumps(tools[0], indent=2) in text
    assert "<city>STRING</city>" in text
    assert '<call>weather({"city": "Zürich"})</call><city>Zürich</city>' in text


def test_a_template_of_its_own_for_tools() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "tools {{ tools | length }}"})
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert template.render(user("x")) == "plain"
    assert template.render(user("x"), tools=tools) == "tools 1"
    with pytest.raises(InvalidModel, match="default"):
        ChatTemplate({"other": "x"})


def test_blocks_are_trimmed_and_generation_marks_ignored() -> None:
    source = "{% for m in messages %}\n  {% generation %}\n{{ m.content }}\n  {% endgeneration %}\n{% endfor %}\nend\n"
    assert ChatTemplate(source).render(user("x")) == "x\nend"


def test_arguments_of_the_template() -> None:
    template = ChatTemplate("{{ 'on' if thinking is not defined or thinking else 'off' }}{{ day | default('') }}")
    assert template.render(user("x")) == "on"
    assert template.render(user("x"), kwargs={"thinking": False, "day": "Monday"}) == "offMonday"


def test_the_date_is_given() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2026, 1, 2))
    assert template.render(user("x")) == "02 Jan 2026"


def test_refusals_of_the_template_reach_the_client() -> None:
    with pytest.raises(InvalidRequest, match="Roles must alternate") as caught:
        ChatTemplate(ALL["alternating"], SPECIALS).render([*user("x"), *user("y")])
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source", ["{{ messages[0].content + 1 }}", "{{ nothing.here.at.all }}", "{{ messages[9].role }}"]
)
def test_failures_of_the_template_are_one_line(source: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot render") as caught:
        ChatTemplate(source).render(user("x"))
    assert "\n" not in str(caught.value) and " at 0x" not in str(caught.value)


def test_case_and_repetition() -> None:
    assert ChatTemplate(LOUD).render(user("aB")) == "<|turn|>ABab<|end|>"
    assert ChatTemplate(GLUED).render(user("end")) == "endend<end><|end|>"


def test_the_callers_messages_are_left_alone() -> None:
    messages = [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]
    before = json.dumps(messages)
    ChatTemplate(TOOLS).render(messages)
    assert json.dumps(messages) == before


# ---------------------------------------------------------------- going on with a message


@pytest.mark.parametrize("name", ["chatml", "alternating", "thinking", "tools"])
@pytest.mark.parametrize("begun", ["The capital is", "e", "ends with a space ", "", "a\ue000b", "<|end|>"])
def test_the_last_message_is_continued(tokenizers: dict[str, Tokenizer], name: str, begun: str) -> None:
    """The same tokens as of the whole conversation, up to the end of what the message says."""
    messages = [*user("Where?"), {"role": "assistant", "content": begun}]
    for tokenizer in tokenizers.values():
        tokens = COMPILED[name].render_tokens(messages, tokenizer=tokenizer, continue_final_message=True)
        whole = COMPILED[name].render_tokens(messages, tokenizer=tokenizer, add_generation_prompt=False)
        text, end = (tokenizer.decode(ids, skip_special_tokens=False) for ids in (tokens, whole))
        assert text.endswith(begun)
        assert end.startswith(text.rstrip())
        assert specials_of(tokenizer, tokens) == specials_of(tokenizer, whole)[: len(specials_of(tokenizer, tokens))]
        assert len(text) < len(end)


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("chatml", user("Where?")),
        ("loud", [{"role": "assistant", "content": "a"}]),
        ("tools", [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}]),
        ("chatml", [{"role": "assistant", "content": "".join(map(chr, range(0xE000, 0xF900)))}]),
    ],
)
def test_what_cannot_be_continued_is_refused(tokenizers: dict[str, Tokenizer], name: str, messages: Messages) -> None:
    with pytest.raises(InvalidRequest):
        COMPILED[name].render_tokens(messages, tokenizer=tokenizers["bytes"], continue_final_message=True)


def test_a_template_says_what_it_reads() -> None:
    assert COMPILED["chatml"].variables == {"messages", "add_generation_prompt"}
    assert "tools" in COMPILED["tools"].variables
    named = ChatTemplate({"default": CHATML, "tool_use": "{{ tools }}{{ enable_thinking }}"})
    assert named.tool_source == "{{ tools }}{{ enable_thinking }}"
    assert {"tools", "enable_thinking", "messages"} <= named.variables
