"""What `LLM` and `AsyncLLM` share: a loaded model with its engine on a thread, and how prompts become requests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, TypedDict

from chairlift.core.errors import InvalidOption, InvalidRequest
from chairlift.core.types import Request, SamplingParams
from chairlift.text.thinking import thinking_of
from chairlift.worker.answers import Answer, Assembly
from chairlift.worker.arguments import Message, Prompt, checked, deadline, tenant_name, token_ids, whole_priority
from chairlift.worker.build import Built
from chairlift.worker.encoder import BuiltEncoder
from chairlift.worker.local import LocalEngine
from chairlift.worker.vectors import Texts


class Service(TypedDict, total=False):
    """When and for whom requests are served: keyword arguments of every call, all optional.

    `tenant` shares the engine with others under `scheduling_policy="fair"`. Deadlines count in milliseconds from the
    call: a request whose first token or end has not come by then ends with `finish_reason` "deadline" and an `error`.
    """

    tenant: str
    ttft_deadline_ms: float
    e2e_deadline_ms: float


class Session:
    """There is a model that generates, an encoder, or both."""

    def __init__(self, built: Built | None, encoder: BuiltEncoder | None = None) -> None:
        self._built = built
        self._encoder = encoder
        self._thinking = None if built is None else thinking_of(built.text)
        if built is not None:
            beside = None if encoder is None else encoder.engine
            self.engine = LocalEngine(built.engine, self._close, built.grammars, beside)
        elif encoder is not None:
            self.engine = LocalEngine(encoder.engine, self._close)
        else:
            raise InvalidOption("there is no model")

    def _close(self) -> None:
        for each in (self._built, self._encoder):
            if each is not None:
                each.close()

    @property
    def built(self) -> Built:
        """The model that generates.

        Raises:
            InvalidRequest: there is none.
        """
        if self._built is None:
            raise InvalidRequest("this model generates no text: use embed, score or classify")
        return self._built

    @property
    def name(self) -> str:
        """Of the model that generates, if there is one."""
        if self._built is None and self._encoder is not None:
            return self._encoder.encoder.name
        return self.built.model.name

    @property
    def max_model_len(self) -> int:
        if self._built is None and self._encoder is not None:
            return self._encoder.limits.max_model_len
        return self.built.limits.max_model_len

    def texts(self) -> Texts:
        """What reads texts for vectors.

        Raises:
            InvalidRequest: there is no encoder.
        """
        if self._encoder is None:
            raise InvalidRequest("this model generates text and gives no vectors: name an encoder with embedding_model")
        return Texts(self.engine, self._encoder)

    def request(
        self,
        prompt: Prompt,
        params: SamplingParams,
        n: int,
        priority: int,
        *,
        is_chat: bool = False,
        tenant: str = "",
        ttft_deadline_ms: float | None = None,
        e2e_deadline_ms: float | None = None,
    ) -> Request:
        """A request that the engine will accept. In a chat thought may come before the form of an answer.

        Raises:
            InvalidRequest: it will not, ever.
        """
        if not isinstance(params, SamplingParams):
            raise InvalidRequest("sampling_params must be SamplingParams, or one for each prompt", "sampling_params")
        arrival = time.monotonic()
        tokens = self.built.text.tokenizer.encode(prompt) if isinstance(prompt, str) else token_ids(prompt)
        if is_chat and self._thinking is not None:
            params = self._thinking.params(params, tokens)
        request = Request(
            id=self.engine.new_id(),
            prompt=tokens,
            params=params,
            arrival=arrival,
            n=n,
            eos_token_ids=self.built.text.eos_token_ids,
            priority=whole_priority(priority),
            tenant=tenant_name(tenant),
            ttft_deadline=deadline("ttft_deadline_ms", arrival, ttft_deadline_ms),
            e2e_deadline=deadline("e2e_deadline_ms", arrival, e2e_deadline_ms),
        )
        return checked(request, self.built.limits, self.built.model.config.vocab_size)

    def assembly(self, answer: Answer, prompt: Prompt, *, is_chat: bool = False) -> Assembly:
        """Reads an answer as text; in a chat its thought apart."""
        text = prompt if isinstance(prompt, str) else None
        thinking = self._thinking
        if not is_chat or thinking is None:
            return Assembly(answer, text, self.built.text_stream)
        streams = partial(self.built.text_stream, tokens=thinking.tokens)
        return Assembly(answer, text, streams, partial(thinking.reader, answer.request.prompt))

    def default_params(self, max_tokens: int | None) -> SamplingParams:
        """What the model's makers recommend, where they do."""
        defaults: dict[str, Any] = {"max_tokens": max_tokens, **self.built.text.sampling_defaults}
        return SamplingParams(**defaults)

    def chat_prompt(self, messages: Sequence[Message]) -> list[int]:
        return self.built.text.encode_chat(messages)
