"""What comes back for one request: raw while it grows, and as text for the caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from chairlift.core.explain import sentence
from chairlift.core.types import Finish, FinishReason, Request, TokenLogprob
from chairlift.text.parts import Content, Part, Reasoning


class Choice:
    """One sequence's tokens so far.

    The loop's thread writes while others read, without a lock: `finish` is set before the last token comes, `closed`
    after everything has come. Lists only grow, and a token's log-probability is there before the token.
    """

    __slots__ = ("closed", "finish", "logprobs", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish: Finish | None = None
        self.closed = False


class Answer:
    """Everything that has come for one request so far."""

    __slots__ = ("choices", "error", "num_open", "prompt_logprobs", "request", "vector")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.choices = [Choice() for _ in range(request.n)]
        self.prompt_logprobs: list[TokenLogprob] = []
        self.num_open = request.n
        self.vector: bytes | None = None
        """What a single pass gave: float32 numbers, little-endian."""
        self.error: Exception | None = None
        """Why the request as a whole was refused or lost; then nothing more comes."""


@dataclass(slots=True)
class CompletionOutput:
    """One choice of an answer, or, when streamed, what is new of it.

    `token_ids` include the token that ended the sequence, `text` does not (unless the parameters ask for stop strings).
    `reasoning` is what a model that thinks wrote for itself, in a chat; it is no part of `text`.
    `finish_reason` is "stop", "length", "abort", "error" or "deadline", and None while there is more to come; `error`
    says what happened in the last two.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    """Sum over all tokens so far, if the parameters ask for log-probabilities."""
    logprobs: list[TokenLogprob] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    reasoning: str = ""


@dataclass(slots=True)
class RequestOutput:
    """A request and its answer: a `CompletionOutput` for each choice, in order; when streamed, for those with news.

    `prompt_logprobs` are parallel to `prompt_token_ids`, with None for the first, which nothing predicts. `metrics`
    says of each choice that is over when it came, started and ended, and how much of its prompt came from the cache.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprob | None] | None = None
    finished: bool = True
    metrics: list[Finish] = field(default_factory=list)

    @property
    def explanations(self) -> list[str]:
        """One sentence for each of `metrics`: what was decided about that choice, and how long it took."""
        return [sentence(finish) for finish in self.metrics]


class TextStream(Protocol):
    """Turns one sequence's tokens into text as they come."""

    def push(self, tokens: list[int]) -> str: ...
    def finish(self) -> str: ...


class TextStreamFactory(Protocol):
    def __call__(self, request: Request) -> TextStream: ...


class PartsReader(Protocol):
    """Divides one sequence's text as it comes."""

    def push(self, text: str) -> list[Part]: ...
    def finish(self) -> list[Part]: ...


class Assembly:
    """Reads an answer as text; each `take` gives what is new since the last one.

    `readers` make what divides the text of each choice into thought and what is said; without, all of it is said.
    """

    def __init__(
        self,
        answer: Answer,
        prompt: str | None,
        streams: TextStreamFactory,
        readers: Callable[[], PartsReader] | None = None,
    ) -> None:
        self._answer = answer
        self._prompt = prompt
        self._prompt_token_ids = list(answer.request.prompt)
        self._choices = [
            _Reading(choice, streams(answer.request), None if readers is None else readers())
            for choice in answer.choices
        ]
        self._num_closed = 0
        self._prompt_logprobs_given = False

    def take(self) -> RequestOutput:
        """What is new. `finished` when nothing more will come.

        Raises:
            ChairliftError: the request as a whole was refused or lost.
        """
        answer = self._answer
        if answer.error is not None:
            raise answer.error
        outputs: list[CompletionOutput] = []
        metrics: list[Finish] = []
        for index, reading in enumerate(self._choices):
            output = reading.take(index, answer.request)
            if output is None:
                continue
            outputs.append(output)
            if output.finish_reason is not None and reading.choice.finish is not None:
                metrics.append(reading.choice.finish)
        self._num_closed += len(metrics)
        finished = self._num_closed == len(self._choices)
        return RequestOutput(
            self._prompt, self._prompt_token_ids, outputs, self._take_prompt_logprobs(outputs), finished, metrics
        )

    def _take_prompt_logprobs(self, outputs: list[CompletionOutput]) -> list[TokenLogprob | None] | None:
        """Once, with the first output: the whole prompt has been computed by then."""
        if self._answer.request.params.prompt_logprobs is None or self._prompt_logprobs_given or not outputs:
            return None
        self._prompt_logprobs_given = True
        return [None, *self._answer.prompt_logprobs]


class _Reading:
    """How far one choice has been read."""

    __slots__ = ("choice", "cumulative_logprob", "ended", "num_read", "reader", "stream")

    def __init__(self, choice: Choice, stream: TextStream, reader: PartsReader | None) -> None:
        self.choice = choice
        self.stream = stream
        self.reader = reader
        self.num_read = 0
        self.cumulative_logprob = 0.0
        self.ended = False

    def take(self, index: int, request: Request) -> CompletionOutput | None:
        choice = self.choice
        closed = choice.closed  # read first: if it is set, everything else is there
        stop = len(choice.tokens)
        finish = choice.finish
        if self.ended or (stop == self.num_read and not closed):
            return None
        tokens = choice.tokens[self.num_read : stop]
        is_last = finish is not None and (closed or stop == finish.num_output_tokens)
        silent = tokens and is_last and finish is not None and is_silent(finish, request)
        text = self.stream.push(tokens[:-1] if silent else tokens)
        output = CompletionOutput(index, text, tokens)
        if request.params.logprobs is not None:
            output.logprobs = choice.logprobs[self.num_read : stop]
            self.cumulative_logprob += sum(each.logprob for each in output.logprobs)
            output.cumulative_logprob = self.cumulative_logprob
        self.num_read = stop
        if closed and finish is not None:
            self.ended = True
            output.text += self.stream.finish()
            output.finish_reason = str(finish.reason)
            output.stop_reason = finish.stop_reason
            output.error = finish.error
        if self.reader is not None:
            parts = self.reader.push(output.text) + (self.reader.finish() if self.ended else [])
            output.text = "".join(part.text for part in parts if isinstance(part, Content))
            output.reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
        return output


def is_silent(finish: Finish, request: Request) -> bool:
    """Whether the last token of an ended sequence has no place in its text: end-of-sequence, or a stop token."""
    by_token = finish.reason is FinishReason.STOP and not isinstance(finish.stop_reason, str)
    return by_token and not request.params.include_stop_str_in_output
