"""Chat templates: from messages to the text, or the tokens, that the model was trained to continue."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from weakref import WeakKeyDictionary

from jinja2 import Template, meta
from jinja2.exceptions import SecurityError, TemplateError, UndefinedError

from chairlift.core.errors import InvalidModel, InvalidRequest
from chairlift.models.files import shown
from chairlift.text.guard import SpecialGuard, strings_of
from chairlift.text.messages import Conversation, conversation_of
from chairlift.text.meter import Bounds, Meter, RenderLimit
from chairlift.text.sandbox import TemplateEnvironment
from chairlift.text.specials import Span
from chairlift.text.template_functions import TemplateRefusal
from chairlift.text.tokenizer import Tokenizer

MAX_TEMPLATE_CHARS = 1 << 18

MARKS = range(0xE000, 0xF900)
"""Characters without a meaning: one that a conversation does not hold marks a place in it."""

DEFAULT_TEMPLATE = "default"
TOOL_TEMPLATE = "tool_use"

_NO_ARGUMENTS: dict[str, Any] = {"description": "", "parameters": {"type": "object", "properties": {}}}
"""What a function is that is said no more of than its name."""

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]


class ChatTemplate:
    """A model's chat template, compiled. Thread-safe.

    `sources` are templates by name: a model may have one more for requests with tools. `special_texts` are the special
    tokens that templates write by name (`bos_token`, ...). `now` is read by templates that write the date.

    Raises:
        InvalidModel: a template does not compile, uses what no chat template needs, or breaks its bounds at once.
    """

    def __init__(
        self,
        sources: str | Mapping[str, str],
        special_texts: Mapping[str, str] | None = None,
        *,
        bounds: Bounds | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        named = {DEFAULT_TEMPLATE: sources} if isinstance(sources, str) else dict(sources)
        self._bounds = bounds or Bounds()
        self._environment = TemplateEnvironment(self._bounds, now)
        self._special_texts = dict(special_texts or {})
        self._templates = {name: self._compiled(name, source) for name, source in named.items()}
        if DEFAULT_TEMPLATE not in self._templates:
            raise InvalidModel("the chat templates lack one named default")
        self.tool_source = named.get(TOOL_TEMPLATE, named[DEFAULT_TEMPLATE])
        """The template for requests with tools, as it is written."""
        self.variables = frozenset().union(*map(self._read_by, named.values()))
        """Names that the templates read: what a request may set, besides what every template gets."""
        self._guards: WeakKeyDictionary[Tokenizer, SpecialGuard] = WeakKeyDictionary()
        self._try()
        self._writes_text_arguments = self._wants_text_arguments()
        self._needed_of_tools = self._wanted_of_tools()

    def render(
        self,
        messages: Messages,
        *,
        add_generation_prompt: bool = True,
        tools: Tools | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of a conversation; with `add_generation_prompt`, up to where the assistant begins to speak.

        Not fit for encoding with special tokens allowed: what a user spelled looks like the template's own.

        Raises:
            InvalidRequest: the messages are malformed, or the template refuses them.
        """
        return self._render(self._conversation(messages, tools, kwargs), add_generation_prompt)

    def render_tokens(
        self,
        messages: Messages,
        *,
        tokenizer: Tokenizer,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Tools | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The tokens of a conversation; of the special tokens in it only those that the template wrote are special.

        The template writes the token that begins a text, if the model wants one. With `continue_final_message` the
        tokens end where the last message does, so that the model goes on with it.

        Raises:
            InvalidRequest: the messages are malformed, or the template refuses them.
        """
        guard = self._guards.get(tokenizer)
        if guard is None:
            guard = self._guards[tokenizer] = SpecialGuard(tokenizer.scanner)
        conversation = self._conversation(messages, tools, kwargs)
        mark = _mark_end(conversation) if continue_final_message else None
        generates = add_generation_prompt and mark is None
        text, spans = guard.render(
            lambda conversation, originals: self._render(conversation, generates, originals), conversation
        )
        if mark is not None:
            text, spans = _up_to(mark, text, spans)
        return tokenizer.encode_spans(text, spans)

    def _conversation(self, messages: Messages, tools: Tools | None, kwargs: Mapping[str, Any] | None) -> Conversation:
        conversation = conversation_of(messages, tools, kwargs)
        if self._writes_text_arguments:
            for message in conversation.messages:
                for call in message.get("tool_calls", ()):
                    function = call["function"]
                    function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
        for tool in conversation.tools or () if self._needed_of_tools else ():
            tool["function"] = {"name": "", **self._needed_of_tools, **tool["function"]}
        return conversation

    def _wants_text_arguments(self) -> bool:
        """Whether the template joins the arguments of calls to other text, as the JSON that the model wrote.

        Most templates write them as JSON themselves; some fail then, or write an object as Python shows it.
        """
        if "tool_calls" not in self.tool_source:
            return False

        def written(arguments: object) -> str:
            call = {"type": "function", "id": "abcdefghi", "function": {"name": "f", "arguments": arguments}}
            turns: list[dict[str, Any]] = [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
            ]
            return self._tried(turns, None) or ""

        as_object, as_text = written({"needle": "x"}), written('{"needle": "x"}')
        return '"needle"' in as_text and (not as_object or "'needle'" in as_object)

    def _wanted_of_tools(self) -> dict[str, Any]:
        """What may be left out of a tool but makes the template fail then: its description, its parameters."""
        if "tools" not in self.tool_source:
            return {}

        def fails_without(*names: str) -> bool:
            function = {"name": "f"} | {name: value for name, value in _NO_ARGUMENTS.items() if name not in names}
            turns = [{"role": "user", "content": "a"}]
            return self._tried(turns, [{"type": "function", "function": function}]) is None

        return {} if fails_without() else {name: _NO_ARGUMENTS[name] for name in _NO_ARGUMENTS if fails_without(name)}

    def _tried(self, turns: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str | None:
        """What the template for requests with tools makes of a conversation; None if it fails."""
        template = self._templates.get(TOOL_TEMPLATE, self._templates[DEFAULT_TEMPLATE])
        try:
            return self._environment.rendered(template, self._variables(turns, False, tools), Meter(self._bounds))
        except Exception:  # a template can fail in as many ways as a program
            return None

    def _render(
        self, conversation: Conversation, add_generation_prompt: bool, originals: Mapping[int, int] | None = None
    ) -> str:
        template = self._templates[DEFAULT_TEMPLATE]
        if conversation.tools:
            template = self._templates.get(TOOL_TEMPLATE, template)
        variables = self._variables(
            conversation.messages, add_generation_prompt, conversation.tools, conversation.kwargs
        )
        try:
            meter = Meter(self._bounds, originals, len(conversation.messages))
            return self._environment.rendered(template, variables, meter)
        except TemplateRefusal as error:
            raise InvalidRequest(f"the chat template refuses these messages: {shown(error)}", "messages") from error
        except Exception as error:  # a template can fail in as many ways as a program
            raise InvalidRequest(f"the chat template cannot render these messages: {_reason(error)}") from error

    def _variables(
        self,
        messages: list[dict[str, Any]],
        add_generation_prompt: bool,
        tools: list[dict[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """What templates read by name; what a request sets may hide special texts, and nothing of the conversation."""
        return {
            "documents": None,
            **self._special_texts,
            **(kwargs or {}),
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }

    def _compiled(self, name: str, source: str) -> Template:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise InvalidModel(f"a chat template has {len(source)} characters; at most {MAX_TEMPLATE_CHARS} are read")
        try:
            return self._environment.from_string(source)
        except Exception as error:
            # Besides syntax errors: what is unsafe, what is nested too deeply, and Python's own limits.
            which = "a chat template" if name == DEFAULT_TEMPLATE else f"the chat template {shown(name)}"
            raise InvalidModel(f"{which} does not compile: {_reason(error)}") from error

    def _read_by(self, source: str) -> frozenset[str]:
        try:
            names = meta.find_undeclared_variables(self._environment.parse(source))
        except Exception as error:
            raise InvalidModel(f"a chat template does not compile: {_reason(error)}") from error
        return frozenset(names) - frozenset(self._environment.globals)

    def _try(self) -> None:
        """Render something, so that a hostile template is found before the first request."""
        for template in self._templates.values():
            variables = self._variables([{"role": "user", "content": "Hello"}], True)
            try:
                self._environment.rendered(template, variables, Meter(self._bounds))
            except (SecurityError, RenderLimit, RecursionError, MemoryError) as error:
                raise InvalidModel(f"a chat template is not safe to use: {_reason(error)}") from error
            except Exception:  # this conversation is not to its taste; others may be
                continue


def _mark_end(conversation: Conversation) -> str:
    """Put a mark at the end of the last message."""
    message = conversation.messages[-1]
    if message["role"] != "assistant" or message.get("tool_calls"):
        raise InvalidRequest("only text of the assistant can be continued", "continue_final_message")
    used = {character for text in strings_of(conversation) if not text.isascii() for character in text}
    mark = next((chr(code) for code in MARKS if chr(code) not in used), None)
    if mark is None:
        raise InvalidRequest("messages use too many different characters", "messages")
    message["content"] += mark
    return mark


def _up_to(mark: str, text: str, spans: list[Span]) -> tuple[str, list[Span]]:
    if text.count(mark) != 1:
        raise InvalidRequest("the chat template cannot continue a message", "continue_final_message")
    end = text.index(mark)
    return text[:end], [span for span in spans if span.stop <= end]


def _reason(error: Exception) -> str:
    """Why, in words fit for a client: errors of Python may name objects by their addresses."""
    if isinstance(error, TemplateError | UndefinedError | RenderLimit | TypeError):
        text = str(error).partition("\n")[0]
        if " at 0x" not in text:
            return shown(text)
    return type(error).__name__
