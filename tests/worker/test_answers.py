"""Answers as text: whole or in pieces, the pieces make the whole, and what ends a sequence is not in its text."""

from __future__ import annotations

from random import Random

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.core.types import Finish, FinishReason, Request, SamplingParams, TokenLogprob
from chairlift.worker.answers import Answer, Assembly, RequestOutput


class Letters:
    """Token 97 is "a"; holds a letter back until the next one, as a detokenizer may."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, tokens: list[int]) -> str:
        text = self._held + "".join(map(chr, tokens))
        self._held = text[-1:]
        return text[:-1]

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held


def answer(n: int = 1, **params: object) -> Answer:
    return Answer(Request(1, [1, 2, 3], SamplingParams(**params), n=n))  # type: ignore[arg-type]


def assembly(of: Answer) -> Assembly:
    return Assembly(of, "prompt", lambda request: Letters())


def end(
    of: Answer, choice: int = 0, reason: FinishReason = FinishReason.LENGTH, stop_reason: int | str | None = None
) -> None:
    """What the engine's thread does at the end of a sequence, in its order."""
    count = len(of.choices[choice].tokens)
    of.choices[choice].finish = finish(choice, count, reason, stop_reason)
    of.choices[choice].closed = True
    of.num_open -= 1


def finish(choice: int, count: int, reason: FinishReason, stop_reason: int | str | None = None) -> Finish:
    return Finish(1, choice, reason, stop_reason, None, 3, count, 0, 0, 0.0, 0.1, 0.2, 0.3)


def test_a_whole_answer() -> None:
    asked = answer()
    asked.choices[0].tokens.extend(map(ord, "hello"))
    end(asked)
    output = assembly(asked).take()
    assert (output.prompt, output.prompt_token_ids, output.finished) == ("prompt", [1, 2, 3], True)
    (only,) = output.outputs
    assert (only.text, only.token_ids, only.finish_reason) == ("hello", list(map(ord, "hello")), "length")
    assert [each.num_output_tokens for each in output.metrics] == [5]
    assert output.explanations == [
        "Started after 0.1 s; 3 prompt tokens; first token after 0.2 s, 4 more in 0.1 s; ended by its length."
    ]


def test_pieces_make_the_whole() -> None:
    random = Random(2)
    for _ in range(50):
        text = "".join(random.choice("abcdef") for _ in range(random.randint(0, 30)))
        asked = answer(logprobs=0)
        reader = assembly(asked)
        outputs: list[RequestOutput] = []
        for letter in text:
            asked.choices[0].logprobs.append(TokenLogprob(ord(letter), -1.0, 1))
            asked.choices[0].tokens.append(ord(letter))
            if random.random() < 0.4:
                outputs.append(reader.take())
        end(asked)
        outputs.append(reader.take())
        pieces = [piece for output in outputs for piece in output.outputs]
        assert "".join(piece.text for piece in pieces) == text
        assert [token for piece in pieces for token in piece.token_ids] == list(map(ord, text))
        assert sum(len(piece.logprobs or []) for piece in pieces) == len(text)
        assert pieces[-1].cumulative_logprob == -len(text)
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        assert all(piece.finish_reason is None for piece in pieces[:-1])


@pytest.mark.parametrize(
    ("reason", "stop_reason", "include", "text"),
    [
        (FinishReason.STOP, None, False, "ab"),
        (FinishReason.STOP, 99, False, "ab"),
        (FinishReason.STOP, 99, True, "abc"),
        (FinishReason.STOP, "c", False, "abc"),  # cutting stop strings is the text stream's work
        (FinishReason.LENGTH, None, False, "abc"),
        (FinishReason.ABORT, None, False, "abc"),
        (FinishReason.ERROR, None, False, "abc"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_the_token_that_ended_it(
    reason: FinishReason, stop_reason: int | str | None, include: bool, text: str, streamed: bool
) -> None:
    asked = answer(include_stop_str_in_output=include)
    reader = assembly(asked)
    choice = asked.choices[0]
    pieces = []
    choice.tokens.extend(map(ord, "ab"))
    if streamed:
        pieces += reader.take().outputs
    choice.finish = finish(0, 3, reason, stop_reason)
    if streamed:
        assert reader.take().outputs == []  # the end is known, the last token is not there yet
    choice.tokens.append(ord("c"))
    if streamed:
        pieces += reader.take().outputs
    choice.closed = True
    pieces += reader.take().outputs
    assert "".join(piece.text for piece in pieces) == text
    assert [token for piece in pieces for token in piece.token_ids] == list(map(ord, "abc"))
    assert (pieces[-1].finish_reason, pieces[-1].stop_reason) == (str(reason), stop_reason)


def test_choices_come_apart_and_the_prompt_once() -> None:
    asked = answer(n=2, prompt_logprobs=0)
    asked.prompt_logprobs.extend(TokenLogprob(token, -2.0, 1) for token in (2, 3))
    reader = assembly(asked)
    asked.choices[1].tokens.append(ord("x"))
    end(asked, 1)
    first = reader.take()
    assert [(piece.index, piece.text, piece.finish_reason) for piece in first.outputs] == [(1, "x", "length")]
    assert first.prompt_logprobs is not None
    assert [each and each.token for each in first.prompt_logprobs] == [None, 2, 3]
    asked.choices[0].tokens.append(ord("y"))
    end(asked, 0)
    second = reader.take()
    assert [(piece.index, piece.text) for piece in second.outputs] == [(0, "y")]
    assert (second.finished, second.prompt_logprobs) == (True, None)


def test_a_refused_request_raises_why() -> None:
    asked = answer()
    asked.error = InvalidRequest("no", "prompt")
    with pytest.raises(InvalidRequest, match="no"):
        assembly(asked).take()
