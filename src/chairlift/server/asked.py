"""What all answers to one prompt share: how they are shown, and the prompt that may have to be shown with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from chairlift.core.types import TokenLogprob
from chairlift.server.logprobs import (
    chat_entries,
    completion_logprobs,
    written_chat_logprobs,
    written_completion_logprobs,
    written_prompt_logprobs,
)
from chairlift.server.message_parts import NewId, call_id
from chairlift.server.ports import TokenNames
from chairlift.server.scores import Scores
from chairlift.server.validate import Presentation
from chairlift.server.written import Written
from chairlift.text.answers import AnswerReader
from chairlift.text.parts import Part, Reasoning, joined


@dataclass(frozen=True, slots=True)
class Asked:
    """One prompt and how its answers are to be shown."""

    tokenizer: TokenNames
    show: Presentation
    prompt: list[int]
    wants_logprobs: bool
    wants_prompt_logprobs: bool
    includes_stop: bool
    """The stop string or stop token that ends an answer is part of its text."""
    open_reader: Callable[[], AnswerReader] | None = None
    """Gives a reader for each answer, if there may be more in it than content."""
    new_call_id: NewId = call_id
    prompt_scores: Scores = field(default_factory=Scores)
    """Of the prompt's second token and those after it, as they come."""

    @property
    def is_plain(self) -> bool:
        """Text is all that is wanted: nothing per token, nothing about the prompt."""
        show = self.show
        extras = self.wants_logprobs or self.wants_prompt_logprobs or show.return_token_ids
        others = self.open_reader is not None or show.stream_interval > 1
        return not (extras or others or show.echo or show.continuous_usage or show.discard_output)

    @property
    def shows_prompt(self) -> bool:
        """The response repeats the prompt, in one form or another."""
        return self.show.echo or self.show.return_token_ids or self.wants_prompt_logprobs

    @property
    def has_scores(self) -> bool:
        return self.wants_logprobs or self.wants_prompt_logprobs

    def shown(self, parts: list[Part]) -> list[Part]:
        """What the client is to see of them."""
        if self.show.include_reasoning:
            return joined(parts)
        return [part for part in joined(parts) if not isinstance(part, Reasoning)]

    def echo(self) -> str:
        """The prompt as text, if it is to be repeated before the answer."""
        return self.tokenizer.decode(self.prompt) if self.show.echo else ""

    def logprobs(self, tokens: Sequence[int], scores: Sequence[TokenLogprob], offset: int = 0) -> dict[str, Any] | None:
        """Scores of output tokens; `offset` is where their text begins, in characters."""
        if not self.wants_logprobs:
            return None
        if self.show.chat:
            return {"content": list(chat_entries(self.tokenizer, scores))}
        return completion_logprobs(self.tokenizer, tokens, scores, offset)

    def whole_logprobs(self, tokens: Sequence[int], scores: Scores) -> Written | None:
        """Scores of all output tokens; of a text that repeats the prompt, those of the prompt's before them."""
        if not self.wants_logprobs:
            return None
        if self.show.chat:
            return written_chat_logprobs(self.tokenizer, scores)
        if not self.show.echo:
            return written_completion_logprobs(self.tokenizer, lambda: tokens, lambda: scores)
        return written_completion_logprobs(
            self.tokenizer,
            lambda: chain(self.prompt, tokens),
            lambda: chain((None,), self.prompt_scores, scores),
        )

    def prompt_fields(self) -> dict[str, Any]:
        """What a response says about the prompt itself, where that was asked for. The scores, which no stream has, are
        `Written`."""
        fields: dict[str, Any] = {}
        if self.wants_prompt_logprobs:
            fields["prompt_logprobs"] = written_prompt_logprobs(self.tokenizer, self.prompt_scores)
        if self.show.return_token_ids:
            fields["prompt_token_ids"] = self.prompt
        return fields
