"""The offline API: a model in this process, for one caller or many threads (`LLM`), or for coroutines (`AsyncLLM`)."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from itertools import repeat
from os import PathLike, fspath
from types import TracebackType
from typing import Any, Self, Unpack

from tqdm import tqdm

from chairlift.core.errors import InvalidOption
from chairlift.core.types import Request, SamplingParams
from chairlift.models import DEFAULT_MODEL
from chairlift.text import given_template
from chairlift.worker.answers import Answer, CompletionOutput, RequestOutput
from chairlift.worker.arguments import Message, Prompt, each_conversation, each_params, each_priority, each_prompt
from chairlift.worker.build import Built, build
from chairlift.worker.encoder import BuiltEncoder, load_encoder
from chairlift.worker.fetch import with_models_here
from chairlift.worker.local import QueueReader
from chairlift.worker.options import EngineOptions
from chairlift.worker.session import Service, Session
from chairlift.worker.spellings import count_of, dtype_of
from chairlift.worker.vectors import ClassificationOutput, EmbeddingOutput, each_pair

__all__ = [
    "LLM",
    "AsyncLLM",
    "ClassificationOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "RequestOutput",
    "SamplingParams",
]


class LLM:
    """A language model, loaded into this process.

    Any number of threads may call `generate` and `chat` at once: what they ask is computed together. Close it, or use
    it in a `with` statement, to stop its thread; the end of the program does that too. Its memory goes with the object.

    `options` are those of `EngineOptions`, named like the flags of `chairlift serve`: dtype, kv_cache_dtype,
    kv_cache_memory_bytes, max_model_len, max_num_seqs, max_num_batched_tokens, enable_prefix_caching, num_threads,
    seed, and those that say how requests are scheduled: batching, scheduling_policy, tenant_weights and more.

    `chat_template` takes the place of the model's own: a Jinja template, or the file that it is in.

    A `model` that is named as on a hub, `org/name`, is got unless it is there; `revision` is a branch, tag or commit.

    `model` may be an encoder (BERT, RoBERTa), which reads texts for `embed`, `score` and `classify`; `embedding_model`
    names one that shares the device with a model that generates.

    Raises:
        InvalidModel: there is no such model, or it cannot be loaded.
        InvalidOption: an option that does not exist or makes no sense.
    """

    def __init__(
        self,
        model: str | PathLike[str] = DEFAULT_MODEL,
        *,
        chat_template: str | PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        template = None if chat_template is None else given_template(chat_template)
        engine_options = _engine_options(model, options)
        encoder, generates = load_encoder(engine_options)
        self._open(build(engine_options, chat_template=template) if generates else None, encoder)

    @classmethod
    def from_built(cls, built: Built) -> Self:
        """The same, around an engine that was already put together; it is this object's from now on."""
        llm = cls.__new__(cls)
        llm._open(built)
        return llm

    def _open(self, built: Built | None, encoder: BuiltEncoder | None = None) -> None:
        self._session = Session(built, encoder)
        # At the interpreter's end a thread inside the device's library must not be cut off: stop it before.
        self._closed = weakref.finalize(self, self._session.engine.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the engine. Calls in progress end with `EngineDead`; closing again does nothing."""
        self._closed()

    @property
    def model_name(self) -> str:
        return self._session.name

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens, prompt and output together."""
        return self._session.max_model_len

    def default_params(self, max_tokens: int | None = 16) -> SamplingParams:
        """Sampling as the model's makers recommend, where they do."""
        return self._session.default_params(max_tokens)

    def generate(
        self,
        prompts: str | Sequence[int] | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        n: int = 1,
        priority: int | Sequence[int] = 0,
        use_tqdm: bool = True,
        **service: Unpack[Service],
    ) -> list[RequestOutput]:
        """Continue each prompt; answers come in the order of the prompts.

        A prompt is text or token ids. Parameters are one for all prompts, or one for each, and so are priorities: the
        lower goes first. Without parameters at most 16 tokens are generated. A request that fails while it is computed
        has `finish_reason` "error", or "deadline" if it missed one, and says why in `error`; the others are not
        affected.

        Raises:
            InvalidRequest: a request that can never be served; nothing has run then.
            EngineDead: the engine was closed or broke.
        """
        each = each_prompt(prompts)
        params = each_params(sampling_params, len(each), self._session.default_params(16))
        return self._run(each, params, n, priority, use_tqdm, service)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        n: int = 1,
        priority: int | Sequence[int] = 0,
        use_tqdm: bool = True,
        **service: Unpack[Service],
    ) -> list[RequestOutput]:
        """Answer each conversation; one conversation is a list of messages with `role` and `content`.

        Without parameters an answer may fill the rest of the context. What a model that thinks wrote for itself is in
        `reasoning`, and a form of the answer begins after it. Otherwise as `generate`.
        """
        prompts = [self._session.chat_prompt(conversation) for conversation in each_conversation(messages)]
        params = each_params(sampling_params, len(prompts), self._session.default_params(None))
        return self._run(prompts, params, n, priority, use_tqdm, service, is_chat=True)

    def embed(
        self,
        prompts: str | Sequence[int] | Sequence[Prompt],
        *,
        normalize: bool | None = None,
        dimensions: int | None = None,
        truncate: bool = True,
        priority: int = 0,
        tenant: str = "",
        e2e_deadline_ms: float | None = None,
        use_tqdm: bool = True,
    ) -> list[EmbeddingOutput]:
        """One vector for each text, in the order of the texts.

        A text is text or token ids. `truncate` leaves out the end of what is longer than the model reads. `normalize`
        scales to length 1, unless told as the model does; `dimensions` keeps so many of the first numbers. A text that
        fails while it is read has an `error`; the others are not affected.

        Raises:
            InvalidRequest: a text that can never be read, or a model that gives no embeddings; nothing has run then.
            EngineDead: the engine was closed or broke.
        """
        return self._session.texts().embed(
            each_prompt(prompts),
            normalize=normalize,
            dimensions=dimensions,
            truncate=truncate,
            priority=priority,
            tenant=tenant,
            e2e_deadline_ms=e2e_deadline_ms,
            use_tqdm=use_tqdm,
        )

    def classify(
        self,
        prompts: str | Sequence[int] | Sequence[Prompt],
        *,
        activate: bool = True,
        truncate: bool = True,
        priority: int = 0,
        tenant: str = "",
        use_tqdm: bool = True,
    ) -> list[ClassificationOutput]:
        """The label of each text, and the scores of all labels. Otherwise as `embed`."""
        return self._session.texts().classify(
            each_prompt(prompts),
            activate=activate,
            truncate=truncate,
            priority=priority,
            tenant=tenant,
            use_tqdm=use_tqdm,
        )

    def score(
        self,
        text_1: str | Sequence[str],
        text_2: str | Sequence[str],
        *,
        activate: bool = True,
        truncate: bool = True,
        priority: int = 0,
        use_tqdm: bool = True,
    ) -> list[float]:
        """How well texts go together: one with each of the others, or two lists pair by pair.

        A cross-encoder says it itself; of a model that embeds it is the cosine. Otherwise as `embed`.
        """
        pairs = each_pair(text_1, text_2)
        return self._session.texts().score(
            pairs, activate=activate, truncate=truncate, priority=priority, use_tqdm=use_tqdm
        )

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        n: int = 1,
        priority: int = 0,
        **service: Unpack[Service],
    ) -> Generator[RequestOutput, None, None]:
        """Continue one prompt, piece by piece; each output holds what is new. Closing the iterator aborts."""
        session = self._session
        request = session.request(prompt, sampling_params or session.default_params(16), n, priority, **service)
        return self._stream(request, prompt, is_chat=False)

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        n: int = 1,
        priority: int = 0,
        **service: Unpack[Service],
    ) -> Generator[RequestOutput, None, None]:
        """Answer one conversation, piece by piece, as `stream` does; thought as `chat` does."""
        session = self._session
        prompt, params = session.chat_prompt(messages), sampling_params or session.default_params(None)
        request = session.request(prompt, params, n, priority, is_chat=True, **service)
        return self._stream(request, prompt, is_chat=True)

    def _run(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams],
        n: int,
        priority: int | Sequence[int],
        use_tqdm: bool,
        service: Service,
        *,
        is_chat: bool = False,
    ) -> list[RequestOutput]:
        engine, reader = self._session.engine, QueueReader()
        requests = [
            self._session.request(*each, is_chat=is_chat, **service)
            for each in zip(prompts, params, repeat(n), each_priority(priority, len(prompts)))
        ]
        outputs: dict[int, RequestOutput] = {}
        answers: list[Answer] = []
        by_id = dict(zip((request.id for request in requests), prompts, strict=True))
        try:
            answers.extend(engine.start(request, reader) for request in requests)
            with tqdm(total=len(requests), unit="req", disable=not use_tqdm, dynamic_ncols=True) as bar:
                num_tokens, start = 0, time.monotonic()
                while len(outputs) < len(requests):
                    for answer in reader.take():
                        output = self._session.assembly(answer, by_id[answer.request.id], is_chat=is_chat).take()
                        outputs[answer.request.id] = output
                        num_tokens += sum(len(each.token_ids) for each in output.outputs)
                        rate = num_tokens / max(time.monotonic() - start, 1e-9)
                        bar.set_postfix_str(f"{rate:.0f} output tok/s", refresh=False)
                        bar.update()
        finally:
            for answer in answers:
                engine.abort(answer)
        return [outputs[request.id] for request in requests]

    def _stream(self, request: Request, prompt: Prompt, *, is_chat: bool) -> Generator[RequestOutput, None, None]:
        engine, reader = self._session.engine, QueueReader()
        answer = engine.start(request, reader, each_step=True)
        assembly = self._session.assembly(answer, prompt, is_chat=is_chat)
        try:
            finished = False
            while not finished:
                reader.take()
                output = assembly.take()
                finished = output.finished
                if output.outputs:
                    yield output
        finally:
            engine.abort(answer)


class AsyncLLM:
    """A language model for coroutines: every call is an async generator that streams.

    Made like `LLM`. Each output holds what is new since the last one; leaving or closing the generator aborts the
    request.
    """

    def __init__(
        self,
        model: str | PathLike[str] = DEFAULT_MODEL,
        *,
        chat_template: str | PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        template = None if chat_template is None else given_template(chat_template)
        self._open(build(_engine_options(model, options), chat_template=template))

    @classmethod
    def from_built(cls, built: Built) -> Self:
        """The same, around an engine that was already put together; it is this object's from now on."""
        llm = cls.__new__(cls)
        llm._open(built)
        return llm

    def _open(self, built: Built) -> None:
        self._session = Session(built)
        self._closed = weakref.finalize(self, self._session.engine.close)
        self._reader: _EventReader | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Stop the engine; generators in progress raise `EngineDead`."""
        self._closed()

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        n: int = 1,
        priority: int = 0,
        **service: Unpack[Service],
    ) -> AsyncGenerator[RequestOutput, None]:
        """Continue one prompt, piece by piece; of two that wait the one of lower priority goes first.

        Raises:
            InvalidRequest: it can never be served.
            EngineDead: the engine was closed or broke.
        """
        params = sampling_params or self._session.default_params(16)
        return self._stream(prompt, params, n, priority, service, is_chat=False)

    def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        n: int = 1,
        priority: int = 0,
        **service: Unpack[Service],
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer one conversation, piece by piece; without parameters it may fill the rest of the context.

        Thought is as `LLM.chat` has it.
        """
        params = sampling_params or self._session.default_params(None)
        return self._stream(self._session.chat_prompt(messages), params, n, priority, service, is_chat=True)

    async def _stream(
        self, prompt: Prompt, params: SamplingParams, n: int, priority: int, service: Service, *, is_chat: bool
    ) -> AsyncGenerator[RequestOutput, None]:
        session = self._session
        request = session.request(prompt, params, n, priority, is_chat=is_chat, **service)
        reader = self._reader_here()
        answer = session.engine.start(request, reader, each_step=True)
        news = reader.watch(answer)
        assembly = session.assembly(answer, prompt, is_chat=is_chat)
        try:
            finished = False
            while not finished:
                await news.wait()
                news.clear()
                output = assembly.take()
                finished = output.finished
                if output.outputs:
                    yield output
        finally:
            reader.forget(answer)
            session.engine.abort(answer)

    def _reader_here(self) -> _EventReader:
        """The reader of the running event loop: all its streams are woken by one call per step."""
        loop = asyncio.get_running_loop()
        if self._reader is None or self._reader.loop is not loop:
            self._reader = _EventReader(loop)
        return self._reader


class _EventReader:
    """Waits in an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._events: dict[int, asyncio.Event] = {}

    def watch(self, answer: Answer) -> asyncio.Event:
        """An event that is set at each news of this answer, and now: some may have come already."""
        event = self._events[answer.request.id] = asyncio.Event()
        event.set()
        return event

    def forget(self, answer: Answer) -> None:
        del self._events[answer.request.id]

    def wake(self, answers: list[Answer]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody is left to hear it
            self.loop.call_soon_threadsafe(self._set, answers)

    def _set(self, answers: list[Answer]) -> None:
        for answer in answers:
            event = self._events.get(answer.request.id)
            if event is not None:
                event.set()


def _engine_options(model: str | PathLike[str], options: Mapping[str, Any]) -> EngineOptions:
    """Checked first, so that no model is got from a hub for nothing; `revision` is that of one there."""
    kinds = {each.name: str(each.type) for each in fields(EngineOptions)}
    for name in options:
        if name not in kinds and name != "revision":
            near = get_close_matches(name, [one for one in (*kinds, "revision", "chat_template") if one != "model"])
            hint = f"is it {' or '.join(near)}?" if near else "they are called as the flags of chairlift serve"
            raise InvalidOption(f"unknown option {name!r}: {hint}")
    options = {name: _as_written(name, value, kinds.get(name, "")) for name, value in options.items()}
    revision = options.pop("revision", None)
    return with_models_here(EngineOptions(model=fspath(model), **options), revision)


def _as_written(name: str, value: object, kind: str) -> object:
    """The value of an option that may be written as for its flag: `10M`, `bf16`."""
    if not isinstance(value, str) or not (kind.startswith("int") or "dtype" in name):
        return value
    try:
        return count_of(value) if kind.startswith("int") else dtype_of(value)
    except InvalidOption as error:
        raise InvalidOption(f"{name}: {error}") from None
