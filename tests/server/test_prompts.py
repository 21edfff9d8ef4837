"""Prompts against the vocabulary and the context."""

from __future__ import annotations

from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.server import prompts, validate
from chairlift.server.errors import ApiError
from chairlift.server.prompts import Fitted, fit
from server.fake_text import TURN, VOCAB_SIZE, FakeText

CONTEXT = 100


def completion(**fields: Any) -> Fitted:
    return fit(validate.completion(fields, {}), FakeText(), CONTEXT)


def refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        completion(**fields)
    assert caught.value.status == 400
    return caught.value


def test_text_becomes_tokens_with_the_special_ones() -> None:
    assert completion(prompt="ab").prompts == [[TURN, 97, 98]]
    assert completion(prompt="ab", add_special_tokens=False).prompts == [[97, 98]]
    assert completion(prompt=[97, 98]).prompts == [[97, 98]]


@pytest.mark.parametrize("prompt", ["", [""], [[]], ["a", ""], [[1], []]])
def test_an_empty_prompt_is_refused(prompt: object) -> None:
    """As in vLLM CVE-2024-8768, where it ended the server."""
    assert refusal(prompt=prompt).param == "prompt"


@pytest.mark.parametrize("token", [-1, VOCAB_SIZE, 2**31, 2**63, -(2**63), 10**400])
@pytest.mark.parametrize(
    "fields",
    [
        lambda token: {"prompt": [1, token]},
        lambda token: {"prompt": [[1], [token]]},
        lambda token: {"prompt": "x", "stop_token_ids": [1, token]},
        lambda token: {"prompt": "x", "allowed_token_ids": [token]},
        lambda token: {"prompt": "x", "logit_bias": {f"{token:d}": 1.0}},
    ],
)
def test_src_vllm_16529_54195_11375_ids_outside_the_vocabulary_are_refused(fields: Any, token: int) -> None:
    refusal(**fields(token))


def test_the_last_id_of_the_vocabulary_is_one() -> None:
    assert completion(prompt=[VOCAB_SIZE - 1], stop_token_ids=[VOCAB_SIZE - 1]).prompts == [[VOCAB_SIZE - 1]]


@pytest.mark.parametrize("over", [-2, -1, 0, 1, 2])
def test_src_llama_cpp_27427_every_length_around_the_limit(over: int) -> None:
    """Prompt and completion together may fill the context exactly."""
    fields = {"prompt": [1] * 60, "max_tokens": 40 + over}
    if over <= 0:
        assert completion(**fields).params[0].max_tokens == 40 + over
        return
    error = refusal(**fields)
    assert error.code == "context_length_exceeded"
    assert "100 tokens" in error.message
    assert f"{100 + over} tokens (60 in the prompt, {40 + over} in the completion)" in error.message


@pytest.mark.parametrize("size", [98, 99, 100, 101, 5000])
def test_a_prompt_must_leave_room_for_a_token(size: int) -> None:
    if size < CONTEXT:
        assert completion(prompt=[1] * size).params[0].max_tokens == min(16, CONTEXT - size)
    else:
        assert refusal(prompt=[1] * size).code == "context_length_exceeded"


def test_each_prompt_of_a_list_has_its_own_default_length() -> None:
    assert [p.max_tokens for p in completion(prompt=[[1] * 10, [1] * 95]).params] == [16, 5]


def test_truncation_keeps_the_end() -> None:
    assert completion(prompt=list(range(1, 101)), truncate_prompt_tokens=3).prompts == [[98, 99, 100]]
    fitted = completion(prompt=[7] * 500, truncate_prompt_tokens=-1, max_tokens=10)
    assert len(fitted.prompts[0]) == 90


def test_min_tokens_must_fit_too() -> None:
    assert refusal(prompt=[1] * 90, min_tokens=12).param == "min_tokens"


def test_a_chat_may_use_the_rest_of_the_context() -> None:
    fitted = fit(validate.chat({"messages": [{"role": "user", "content": "x"}]}, {}), FakeText(), CONTEXT)
    assert fitted.params[0].max_tokens is None


def test_what_a_template_cannot_say_is_a_400() -> None:
    with pytest.raises(ApiError) as caught:
        fit(validate.chat({"messages": [{"role": "assistant", "content": "x"}]}, {}), FakeText(), CONTEXT)
    assert (caught.value.status, caught.value.param) == (400, "messages")


class CountingText(FakeText):
    """Ten characters a token, and a count of what was encoded."""

    num_chars = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.num_chars += len(text)
        return [1] * (len(text) // self.chars_per_token)

    chars_per_token = 10


def test_a_hopeless_text_is_refused_by_its_beginning() -> None:
    text = CountingText()
    with pytest.raises(ApiError) as caught:
        fit(validate.completion({"prompt": "x" * 10**7}, {}), text, CONTEXT)
    assert caught.value.code == "context_length_exceeded"
    assert text.num_chars < 50_000


def test_a_long_text_of_few_tokens_is_served() -> None:
    text = CountingText()
    text.chars_per_token = 10**6
    fitted = fit(validate.completion({"prompt": "x" * 10**7}, {}), text, CONTEXT)
    assert len(fitted.prompts[0]) == 10
    assert text.num_chars < 2 * 10**7


def test_a_text_to_be_truncated_has_a_limit_of_its_own() -> None:
    text = CountingText()
    asked = validate.completion({"prompt": "x" * 10**6, "truncate_prompt_tokens": 5}, {})
    assert len(fit(asked, text, CONTEXT).prompts[0]) == 5
    with pytest.raises(ApiError):
        fit(validate.completion({"prompt": "x" * 2**21, "truncate_prompt_tokens": 5}, {}), text, CONTEXT)


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": 19, "max_tokens": 80, "n": 128},
        {"logprobs": 20, "max_tokens": 1, "n": 128},
        {"prompt_logprobs": 20, "prompt": ["x" * 40] * 128},
        {"logprobs": 20, "echo": True, "n": 128, "max_tokens": 1},
    ],
)
def test_scores_of_one_response_are_bounded(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"prompt": "x" * 10} | fields
    assert completion(**asked).prompts
    monkeypatch.setattr(prompts, "MAX_SCORES", 1000)
    assert refusal(**asked).code == "too_many_logprobs"
    if "prompt_logprobs" not in fields and not fields.get("echo"):
        assert completion(**asked, stream=True).prompts


def test_scores_that_nobody_asked_for_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "MAX_SCORES", 0)
    assert completion(prompt=["x"] * 4, n=32, max_tokens=50).prompts


def test_a_text_that_cannot_be_told_from_special_tokens_is_a_400() -> None:
    class Ambiguous(FakeText):
        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            raise InvalidRequest("the text cannot be told from the model's special tokens")

    with pytest.raises(ApiError) as caught:
        fit(validate.completion({"prompt": "x"}, {}), Ambiguous(), CONTEXT)
    assert (caught.value.status, caught.value.param) == (400, "prompt")
