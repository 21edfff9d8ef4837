"""POST /tokenize and /detokenize: what a text or a chat is to the model, without putting it to the model.

    body -> admission -> tokens -> response
                `-- on a thread, if the body is large

Only the engine's queue decides about who may: whoever asks takes a place in it while a thread is at work, and leaves it
without having cost a token. What is counted may be twice as long as the context, so that one learns how much is too
much; beyond that nothing is told that a refusal does not tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Annotated, Any, TypedDict

import msgspec

from chairlift.server.bounds import EFFORTS, MAX_TOOLS, TokenId, tells
from chairlift.server.chat_prompt import chat_prompt
from chairlift.server.entrance import INLINE_BYTES, check_model, here_or_on, refusals
from chairlift.server.errors import bad_request, never_fits
from chairlift.server.exchange import Exchange
from chairlift.server.fields import refuse_unsupported
from chairlift.server.generate import Engine
from chairlift.server.identity import tenant_name
from chairlift.server.json_body import convert, read_object
from chairlift.server.logprobs import token_text
from chairlift.server.ports import ChatPrompt
from chairlift.server.prompts import (
    BYTES_PER_TOKEN,
    CONTEXT_CODE,
    chat_tokens,
    check_token_ids,
    refuse_hopeless,
    text_tokens,
)
from chairlift.server.protocol import HARMLESS_IN_CHATS, ChatBody, Message, Tool
from chairlift.server.shapes import encode_json
from chairlift.server.structured import OFF
from chairlift.server.tools import tool_use

MAX_CONTEXTS = 2
"""How many times the context what is counted may be."""


UNSUPPORTED_IN_TEXTS = HARMLESS_IN_CHATS
"""Fields of /tokenize that would change the tokens and are not supported, with the values that ask for nothing."""


class TokenizeBody(msgspec.Struct, kw_only=True):
    """POST /tokenize: a text, or a chat with what decides how it is put to the model."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    messages: Annotated[list[Message], tells("Instead of `prompt`.", minItems=1)] | None = None
    tools: Annotated[list[Tool], tells(maxItems=MAX_TOOLS)] | None = None
    tool_choice: Annotated[str, tells(enum=["none", "auto", "required"])] | dict[str, Any] | None = None
    reasoning_effort: Annotated[str, tells(enum=["", *EFFORTS])] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None

    def chat(self) -> ChatBody:
        """The chat that is asked about."""
        return ChatBody(
            messages=self.messages,
            tools=self.tools,
            tool_choice=self.tool_choice,
            reasoning_effort=self.reasoning_effort,
            chat_template_kwargs=self.chat_template_kwargs,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
        )


class TokenizeAnswer(TypedDict):
    """What a text is to the model."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


_OF_CHATS = ("tools", "tool_choice", "reasoning_effort", "chat_template_kwargs", "continue_final_message")


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[TokenId], tells(required=True)] | None = None


class DetokenizeAnswer(TypedDict):
    """The text of tokens; special ones are spelled out."""

    prompt: str


ReadBody = Callable[[dict[str, Any], Engine], Mapping[str, Any]]
"""From a body to the response; on any thread. Raises an ApiError for a body that is wrong."""


class Tokenizing:
    """Serves what is asked about texts and tokens of one engine."""

    def __init__(
        self,
        engine: Engine,
        pool: Executor,
        clock: Callable[[], float],
        *,
        max_body_bytes: int,
        overload_status: int = 429,
    ) -> None:
        self._engine = engine
        self._pool = pool
        self._clock = clock
        self._max_body_bytes = max_body_bytes
        self._overload_status = overload_status

    async def serve(self, exchange: Exchange, read: ReadBody) -> None:
        """Answer one request.

        Raises:
            ApiError: this is what to send.
            ClientGone: nobody is there to answer.
        """
        body = await exchange.body(self._max_body_bytes)
        client = self._engine.client
        num_tokens = max(1, min(self._engine.max_model_len, len(body) // BYTES_PER_TOKEN))
        tenant = tenant_name(exchange.headers, "")
        with refusals(client.metrics, self._overload_status):
            (ticket,) = client.admission.admit(exchange.principal.name, [num_tokens], self._clock(), tenant=tenant)
        try:
            work = partial(self._answer, body, read)
            answer = await here_or_on(self._pool, work, inline=len(body) <= INLINE_BYTES)
        finally:
            client.admission.tokenised(ticket, 0)
            client.admission.ended(ticket, self._clock())
        await exchange.respond(200, answer)

    def _answer(self, body: bytes, read: ReadBody) -> bytes:
        content = read_object(body)
        check_model(content, self._engine.served_names)
        return encode_json(read(content, self._engine))


def tokenize(content: dict[str, Any], engine: Engine) -> TokenizeAnswer:
    """The tokens of a text or of a chat.

    Raises:
        ApiError: 400, naming the field.
    """
    refuse_unsupported(content, UNSUPPORTED_IN_TEXTS)
    body, text = convert(content, TokenizeBody), engine.text
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("either prompt or messages must be given", "prompt")
    if body.prompt is None:
        chat = body.chat()
        tokens = counted_tokens(chat_prompt(chat, tool_use(chat, text.manners), text.manners), engine)
    else:
        _refuse_of_chats(body)
        refuse_hopeless(body.prompt, text, engine.max_model_len)
        tokens = text_tokens(body.prompt, text, add_special_tokens=body.add_special_tokens is not False)
        _check_length("prompt", tokens, MAX_CONTEXTS, engine)
    strings = [token_text(text, token) for token in tokens] if body.return_token_strs else None
    return TokenizeAnswer(count=len(tokens), max_model_len=engine.max_model_len, tokens=tokens, token_strs=strings)


def _refuse_of_chats(body: TokenizeBody) -> None:
    for name in _OF_CHATS:
        if getattr(body, name) not in OFF:
            raise bad_request(f"{name} is about messages, not about a prompt", name)


def counted_tokens(prompt: ChatPrompt, engine: Engine) -> list[int]:
    """The tokens of a chat that is not too long to be counted; raises a 400 for one that is."""
    tokens = chat_tokens(prompt, engine.text)
    _check_length("messages", tokens, MAX_CONTEXTS, engine)
    return tokens


def detokenize(content: dict[str, Any], engine: Engine) -> DetokenizeAnswer:
    """The text of tokens: of no more than the context takes, since one may stand for hundreds of characters.

    Raises:
        ApiError: 400, naming the field.
    """
    tokens = convert(content, DetokenizeBody).tokens
    if tokens is None:
        raise bad_request("tokens must be given", "tokens")
    _check_length("tokens", tokens, 1, engine)
    check_token_ids("tokens", tokens, engine.text.vocab_size)
    return DetokenizeAnswer(prompt=engine.text.spell(tokens))


def _check_length(what: str, tokens: list[int], num_contexts: int, engine: Engine) -> None:
    if len(tokens) > num_contexts * engine.max_model_len:
        raise never_fits(
            f"This model's maximum context length is {engine.max_model_len} tokens. However, {what} has {len(tokens)}.",
            what,
            CONTEXT_CODE,
        )
