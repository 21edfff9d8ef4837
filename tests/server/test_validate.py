"""From bodies to validated requests."""

from __future__ import annotations

from typing import Any

import pytest

from chairlift.core.types import SamplingParams
from chairlift.server import validate
from chairlift.server.bounds import MAX_CHOICES
from chairlift.server.errors import ApiError
from chairlift.server.ports import ChatManners, ChatPrompt
from chairlift.server.protocol import HARMLESS_IN_CHATS, HARMLESS_IN_COMPLETIONS
from chairlift.server.validate import Validated

USER = [{"role": "user", "content": "hi"}]


def completion(**fields: Any) -> Validated:
    return validate.completion({"prompt": "hi"} | fields, {})


def chat(**fields: Any) -> Validated:
    return validate.chat({"messages": USER} | fields, {})


def refusal(function: Any, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        function(**fields)
    assert caught.value.status == 400
    return caught.value


def test_defaults_are_those_of_the_api() -> None:
    asked = completion()
    assert asked.params == SamplingParams(max_tokens=16)
    assert asked.prompts == ["hi"]
    assert asked.n == 1
    assert asked.clip_max_tokens
    assert chat().params == SamplingParams(max_tokens=None)


def test_every_field_arrives() -> None:
    asked = completion(
        n=2,
        max_tokens=20,
        min_tokens=3,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        seed=7,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=-0.3,
        logit_bias={"5": 1, "17": -100},
        allowed_token_ids=[1, 2],
        stop=["a", "b"],
        stop_token_ids=[9],
        include_stop_str_in_output=True,
        ignore_eos=True,
        logprobs=2,
        truncate_prompt_tokens=5,
        add_special_tokens=False,
        return_token_ids=True,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        priority=-3,
        request_id="mine",
        cache_salt="s",
        user="ignored",
        something_new={"is": "ignored"},
    )
    assert asked.params == SamplingParams(
        max_tokens=20,
        min_tokens=3,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        seed=7,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=-0.3,
        logit_bias=((5, 1.0), (17, -100.0)),
        allowed_token_ids=(1, 2),
        stop=("a", "b"),
        stop_token_ids=(9,),
        include_stop_str_in_output=True,
        ignore_eos=True,
        logprobs=2,
    )
    assert (asked.n, asked.priority, asked.cache_salt, asked.request_id) == (2, -3, "s", "mine")
    assert (asked.truncate_to, asked.add_special_tokens, asked.clip_max_tokens) == (5, False, False)
    show = asked.show
    assert (show.stream, show.include_usage, show.continuous_usage, show.return_token_ids) == (True,) * 4


def test_null_means_left_out() -> None:
    names = [
        "n", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "stream", "stream_options", "logprobs",
        "logit_bias", "user", "echo", "best_of", "suffix", "response_format", "tools", "priority",
    ]  # fmt: skip
    assert completion(**dict.fromkeys(names)) == completion()


def test_the_model_s_own_defaults_fill_what_was_left_out() -> None:
    defaults = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1}
    params = validate.chat({"messages": USER, "temperature": 0}, defaults).params
    assert (params.temperature, params.top_k, params.top_p) == (0, 20, 0.95)
    assert (params.min_p, params.repetition_penalty) == (0.05, 1.1)
    asked = validate.chat({"messages": USER}, {"max_tokens": 99})
    assert (asked.params.max_tokens, asked.clip_max_tokens) == (99, True)


def test_max_completion_tokens_goes_before_max_tokens() -> None:
    assert chat(max_tokens=5, max_completion_tokens=7).params.max_tokens == 7
    assert chat(max_tokens=5).params.max_tokens == 5


def test_chat_logprobs_need_the_switch() -> None:
    assert chat(logprobs=True, top_logprobs=3).params.logprobs == 3
    assert chat(logprobs=True).params.logprobs == 0
    assert chat(logprobs=False).params.logprobs is None
    assert chat(top_logprobs=0).params.logprobs is None
    assert refusal(chat, top_logprobs=3).param == "top_logprobs"


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_the_four_ways_to_prompt(prompt: object, prompts: object) -> None:
    assert completion(prompt=prompt).prompts == prompts


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        [],
        ["a", 1],
        [1, "a"],
        [[1], "a"],
        ["a", [1]],
        [1.5],
        [[1.5]],
        [True],
        [[True]],
        [None],
        {"a": 1},
        5,
        [[[1]]],
    ],
)
def test_other_prompts_are_refused(prompt: object) -> None:
    assert refusal(completion, prompt=prompt).param == "prompt"


def test_parts_of_type_text_are_one_text() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = chat(messages=[{"role": "user", "content": content}])
    assert asked.prompts == [ChatPrompt(messages=[{"role": "user", "content": "a\nb"}])]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user"},
        {"role": "user", "content": None},
        {"role": "user", "content": 5},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://localhost/x.png"}}]},
        {"role": "user", "content": [{"type": "input_audio"}]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "tool"},
        {"role": "assistant"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "custom", "function": {"name": "f"}}]},
        {"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "assistant", "content": "x", "audio": {"id": "1"}},
        {"role": "assistant", "content": "", "function_call": {"name": "f"}},
        {"role": "root", "content": "x"},
        {"content": "x"},
        "hi",
        None,
    ],
)
def test_other_messages_are_refused(message: object) -> None:
    error = refusal(chat, messages=[{"role": "user", "content": "fine"}, message])
    assert error.param == "messages"
    assert "messages[1]" in error.message


@pytest.mark.parametrize(
    ("function", "name"),
    [(completion, name) for name in HARMLESS_IN_COMPLETIONS] + [(chat, name) for name in HARMLESS_IN_CHATS],
)
def test_what_is_not_supported_is_refused_by_name(function: Any, name: str) -> None:
    harmless = HARMLESS_IN_CHATS if function is chat else HARMLESS_IN_COMPLETIONS
    error = refusal(function, **{name: {"anything": 1}})
    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert name in error.message
    for value in harmless[name]:
        function(**{name: value})


def test_best_of_keeps_the_best() -> None:
    assert completion(best_of=1).show.num_kept is None
    assert completion(n=3, best_of=3).show.num_kept is None
    asked = completion(best_of=4, n=2)
    assert (asked.n, asked.show.num_kept, asked.params.logprobs, asked.shows_logprobs) == (4, 2, 0, False)
    assert completion(best_of=2, logprobs=3).params.logprobs == 3
    assert completion(best_of=2, logprobs=3).shows_logprobs
    for fields in ({"n": 2, "best_of": 1}, {"best_of": 2, "stream": True}, {"best_of": 2, "explain": True}):
        assert refusal(completion, **fields).param == "best_of"
    assert refusal(completion, best_of=129).param == "best_of"
    assert refusal(completion, best_of=65, prompt=["a", "b"]).param == "n"
    assert refusal(chat, best_of=2).param == "best_of"
    assert chat(best_of=2, n=2).n == 2


NUMBERS = [-1, 0, 1000, 2**31, 2**63, 10**400, 1e308, float("inf"), float("nan"), -0.0, True, "1", None, [], {}]
FIELDS = [
    "n", "best_of", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "logprobs", "prompt_logprobs", "truncate_prompt_tokens", "priority",
    "top_logprobs", "max_completion_tokens", "stop", "stop_token_ids", "allowed_token_ids", "logit_bias", "stream",
    "stream_options", "stream_interval", "echo", "ignore_eos", "cache_salt", "request_id", "add_special_tokens",
    "messages", "prompt",
]  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("function", [completion, chat])
def test_a_number_gives_a_bounded_request_or_a_400(function: Any, field: str) -> None:
    """Every number against every field (reliability E1): nothing but a refusal or a request within the bounds."""
    for value in NUMBERS:
        try:
            asked = function(**{field: value})
        except ApiError as error:
            assert error.status == 400
            continue
        assert 1 <= asked.n * len(asked.prompts) <= MAX_CHOICES
        assert abs(asked.priority) < 2**31
        assert asked.params.top_k < 2**31
        assert asked.params.min_tokens < 2**31


def test_src_vllm_cve_2026_34756_n_is_bounded_before_anything_is_made() -> None:
    assert refusal(completion, n=129).param == "n"
    assert refusal(completion, prompt=["a"] * 128, n=2).param == "n"
    assert refusal(completion, prompt=["a"] * 129).param == "prompt"
    assert len(completion(prompt=["a"] * 64, n=2).prompts) == 64


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": [""]},
        {"stop": ["x"] * 17},
        {"stop": "x" * 257},
        {"logit_bias": {"x": 1}},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {"01": 1}},
        {"logit_bias": {"٣": 1}},
        {"logit_bias": {"9" * 5000: 1}},
        {"logit_bias": {"1": 101}},
        {"logit_bias": {str(i): 1 for i in range(5000)}},
        {"stop_token_ids": list(range(5000))},
        {"allowed_token_ids": []},
        {"min_tokens": 20, "max_tokens": 10},
        {"stream_options": {"include_usage": True}},
        {"cache_salt": ""},
        {"cache_salt": "x" * 257},
        {"truncate_prompt_tokens": 0},
        {"truncate_prompt_tokens": -2},
        {"max_tokens": 0},
        {"stream": True, "prompt_logprobs": 0},
        {"stream": True, "echo": True, "logprobs": 1},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_these_are_refused(fields: dict[str, Any]) -> None:
    refusal(completion, **fields)


def test_echo_without_output_asks_for_scores_only() -> None:
    asked = completion(echo=True, max_tokens=0, logprobs=1)
    assert asked.show.discard_output
    assert (asked.params.max_tokens, asked.params.prompt_logprobs, asked.params.logprobs) == (1, 1, 1)
    assert not asked.shows_prompt_logprobs


def test_a_flexible_request_waits_behind_the_others() -> None:
    assert chat(service_tier="flex").priority > chat(service_tier="auto").priority == chat().priority
    assert chat(service_tier="flex", priority=-5).priority == -5
    tiers = {tier: chat(service_tier=tier).show.service_tier for tier in ("auto", "default", "flex", "priority")}
    assert tiers == {"auto": "default", "default": "default", "flex": "flex", "priority": "default"}
    assert chat().show.service_tier is None
    assert refusal(chat, service_tier="first class").param == "service_tier"


def test_what_clients_send_along_changes_nothing() -> None:
    fields = {
        "metadata": {"session": "1"}, "store": False, "prompt_cache_key": "k", "session_id": "s",
        "parallel_tool_calls": True, "safety_identifier": None, "prompt_cache_retention": "24h",
        "tools": [], "tool_choice": "auto",
        "response_format": {"type": "text"}, "reasoning_effort": None, "stream_interval": 1,
    }  # fmt: skip
    assert chat(**fields) == chat()
    assert refusal(chat, metadata={str(i): "" for i in range(17)}).param == "metadata"
    assert refusal(chat, metadata={"a": 1}).param == "metadata"
    assert refusal(chat, store=True).param == "store"
    assert refusal(chat, stream=True, stream_options={"include_obfuscation": True}).param == "stream_options"


# ---------------------------------------------------------------- conversations


def told(message: dict[str, Any]) -> dict[str, Any]:
    (prompt,) = chat(messages=[*USER, message]).prompts
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages[-1]


def test_calls_and_results_go_into_the_conversation() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "audio": None}
    assert told(said) == {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "5"}], "name": "f"}
    assert told(result) == {"role": "tool", "tool_call_id": "c1", "content": "5", "name": "f"}


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thought_of_earlier_turns_goes_under_the_name_that_templates_know(name: str) -> None:
    said = {"role": "assistant", "content": "x", name: "hm"}
    assert told(said) == {"role": "assistant", "content": "x", "reasoning_content": "hm"}


def test_a_message_is_continued_instead_of_answered() -> None:
    said = {"role": "assistant", "content": "The"}
    (prompt,) = chat(messages=[*USER, said], continue_final_message=True).prompts
    assert isinstance(prompt, ChatPrompt)
    assert (prompt.continue_final_message, prompt.add_generation_prompt) == (True, False)
    (prompt,) = chat(messages=[*USER, said], continue_final_message=True, add_generation_prompt=False).prompts
    assert isinstance(prompt, ChatPrompt)
    assert prompt.continue_final_message
    error = refusal(chat, messages=[*USER, said], continue_final_message=True, add_generation_prompt=True)
    assert error.param == "continue_final_message"


def test_only_a_new_message_is_a_text_of_its_own() -> None:
    assert not chat().show.continues
    assert chat(continue_final_message=True, add_generation_prompt=False).show.continues
    assert completion().show.continues


THINKS = ChatManners(template_variables=frozenset({"enable_thinking", "style"}), template_kwargs={"style": "dry"})
GRADED = ChatManners(template_variables=frozenset({"reasoning_effort"}))


def kwargs_of(manners: ChatManners, **fields: Any) -> dict[str, Any]:
    (prompt,) = validate.chat({"messages": USER} | fields, {}, manners).prompts
    assert isinstance(prompt, ChatPrompt)
    return prompt.template_kwargs


def test_a_template_is_told_what_it_reads_and_nothing_else() -> None:
    assert kwargs_of(THINKS) == {"style": "dry"}
    assert kwargs_of(THINKS, chat_template_kwargs={"style": "wild", "enable_thinking": False}) == {
        "style": "wild",
        "enable_thinking": False,
    }
    assert kwargs_of(ChatManners(), chat_template_kwargs={"enable_thinking": False, "thinking": True}) == {}
    for name in ("bos_token", "x", "chat_template", "__class__"):
        error = refusal(chat, chat_template_kwargs={name: 1})
        assert (error.param, error.code) == ("chat_template_kwargs", "unsupported_parameter")


def test_effort_is_told_where_it_is_understood() -> None:
    assert kwargs_of(GRADED, reasoning_effort="high") == {"reasoning_effort": "high"}
    assert kwargs_of(THINKS, reasoning_effort="none") == {"style": "dry", "enable_thinking": False}
    assert kwargs_of(ChatManners(), reasoning_effort="none") == {}
    for effort in ("high", "very"):
        assert refusal(chat, reasoning_effort=effort).param == "reasoning_effort"
