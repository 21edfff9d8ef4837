"""Every limit on what a request may ask, as a change of a request that would be served without it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from server.fake_text import VOCAB_SIZE

CONTEXT = 256
MAX_BODY_BYTES = 900_000

Body = dict[str, Any]
HUGE = 2**31
DIGITS = "9" * 5000


@dataclass(frozen=True)
class Limit:
    """Something that is refused wherever a route has the `fields` that it is about."""

    name: str
    fields: tuple[str, ...] = ()
    change: Callable[[Body], Body] | None = None
    raw: Callable[[Body], bytes] | None = None
    """Instead of `change`, where no JSON writer would write it."""
    headers: dict[str, str] = field(default_factory=dict)
    statuses: tuple[int, ...] = (400,)
    extend: bool = False
    """It is about what all ways of asking have in common; a route without its fields has it all the same."""

    def request(self, body: Body) -> bytes:
        if self.raw is not None:
            return self.raw(body)
        return json.dumps(body if self.change is None else self.change(body)).encode()


def lengthened(value: Any, count: int) -> Any:
    """A prompt of whatever shape, with so many tokens in its last part."""
    if value is None or isinstance(value, str):
        return "x" * count
    if isinstance(value, dict):
        name = next(name for name in ("content", "text") if name in value)
        return value | {name: lengthened(value[name], count)}
    if all(isinstance(one, int) for one in value):
        return [1] * count
    return [*value[:-1], lengthened(value[-1], count)]


def with_token(value: Any, token: int) -> Any:
    """A prompt of the same shape in which a token is replaced; text is replaced by tokens."""
    if isinstance(value, list) and value and not all(isinstance(one, int) for one in value):
        return [*([[1]] * (len(value) - 1)), [1, token]]
    return [1, token]


def sets(**fields: Any) -> Callable[[Body], Body]:
    return lambda body: body | fields


def spliced(text: str) -> Callable[[Body], bytes]:
    """The body with a piece of JSON before its end."""
    return lambda body: (json.dumps(body)[:-1] + ", " + text + "}").encode()


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"properties": value}
    return value


def everywhere() -> Iterator[Limit]:
    """What holds for every body."""
    yield Limit("body bytes", raw=lambda body: json.dumps(body).encode() + b" " * MAX_BODY_BYTES, statuses=(413,))
    yield Limit("header bytes", headers={"x-long": "a" * 17_000}, statuses=(431,))
    yield Limit("number of headers", headers={f"x-{i}": "1" for i in range(101)}, statuses=(431,))
    for encoding in ("gzip", "deflate", "br", "identity, gzip"):
        yield Limit(f"encoding {encoding}", headers={"content-encoding": encoding}, statuses=(415,))
    for what, text in (
        ("brackets", '"x": ' + "[" * 50_000 + "]" * 50_000),
        ("braces", '"x": ' + '{"a":' * 20_000 + "1" + "}" * 20_000),
        ("structure", '"x": [' + "[]," * 210_000 + "[]]"),
        ("a key twice", '"x": 1, "x": 1'),
        ("NaN", '"x": NaN'),
        ("Infinity", '"x": [-Infinity]'),
        ("digits", f'"x": {DIGITS}'),
        ("half a pair", '"x": "\\ud800"'),
    ):
        yield Limit(what, raw=spliced(text), statuses=(400,) if len(text) < 16_000 else (400, 413))
    yield Limit("not UTF-8", raw=lambda body: json.dumps(body).encode() + b"\xff")
    yield Limit("no object", raw=lambda body: json.dumps([body]).encode())
    yield Limit("nothing", raw=lambda _: b"")
    yield Limit("cut", raw=lambda body: json.dumps(body).encode()[:-1])


def by_field() -> Iterator[Limit]:
    """What holds wherever a field is taken."""
    yield Limit("model", ("model",), sets(model="../../etc/passwd"), statuses=(404,), extend=True)
    yield Limit("model of the wrong type", ("model",), sets(model=["fake"]), extend=True)
    yield from _prompts()
    yield from _numbers()
    yield from _lists()
    yield from _texts()
    yield from _forms()
    yield from _unsupported()


def _prompts() -> Iterator[Limit]:
    for name in ("prompt", "messages", "input"):

        def lengthen(body: Body, name: str = name) -> Body:
            return body | {name: lengthened(body.get(name), 2 * CONTEXT)}

        def wrong_token(body: Body, name: str = name) -> Body:
            return body | {name: with_token(body.get(name), VOCAB_SIZE)}

        yield Limit(f"tokens of {name}", (name,), lengthen)
        for what, value in (("none", []), ("null", None), ("a number", 5), ("an object", {}), ("nested", [[[1]]])):
            yield Limit(f"{name}: {what}", (name,), sets(**{name: value}))
        if name in ("prompt", "input"):
            yield Limit(f"token of {name}", (name,), wrong_token)
            yield Limit(f"{name}: mixed", (name,), sets(**{name: ["a", [1]]}))
            yield Limit(f"{name}: negative", (name,), sets(**{name: [1, -1]}))
            yield Limit(f"{name}: enormous", (name,), sets(**{name: [1, 2**64]}))
    for tokens in (None, "a", [VOCAB_SIZE], [-1], [1.5], [2**64], [True], [1] * (CONTEXT + 1)):
        yield Limit(f"tokens: {tokens!s:.30}", ("tokens",), sets(tokens=tokens))
    yield Limit("129 prompts", ("prompt",), sets(prompt=["a"] * 129))
    yield Limit("n x prompts", ("prompt", "n"), sets(prompt=["a", "b", "c"], n=64, stream=False))
    for name, others in (
        ("documents", {"query": "x"}),
        ("texts", {"query": "x", "documents": None}),
        ("text_2", {"text_1": "x"}),
    ):
        fields = (name, *others)
        yield Limit(f"number of {name}", fields, sets(**others, **{name: ["a"] * 2049}))
        yield Limit(f"no {name}", fields, sets(**others, **{name: []}))
        yield Limit(f"{name}: numbers", fields, sets(**others, **{name: [1]}))
    yield Limit("number of queries", ("queries",), sets(queries="x", documents=["a"] * 2049))
    for name, nothing in (("query", ""), ("text_1", []), ("queries", [])):
        yield Limit(f"no {name}", (name,), sets(**{name: nothing}))
    yield Limit("2049 texts", ("input",), sets(input=["a"] * 2049))
    yield Limit("many messages", ("messages",), sets(messages=[{"role": "user", "content": ""}] * 10_001))
    yield Limit(
        "scores", ("n", "logprobs", "prompt"), sets(prompt="x", n=128, logprobs=20, max_tokens=250, stream=False)
    )
    yield Limit(
        "scores of chats",
        ("n", "top_logprobs"),
        sets(n=128, logprobs=True, top_logprobs=20, max_tokens=250, stream=False),
    )
    yield Limit("role", ("messages",), sets(messages=[{"role": "root", "content": "x"}]))
    for kind in ("image_url", "input_audio", "file", "video_url"):
        part = {"type": kind, kind: {"url": "http://127.0.0.1:1/x"}}
        yield Limit(f"part {kind}", ("messages",), sets(messages=[{"role": "user", "content": [part]}]))


def _numbers() -> Iterator[Limit]:
    for name, values in {
        "n": (0, -1, 129, HUGE, 1.5, True),
        "best_of": (0, -1, 129, HUGE),
        "max_tokens": (-1, CONTEXT, HUGE, 2**63),
        "max_completion_tokens": (-1, CONTEXT, HUGE),
        "max_output_tokens": (-1, CONTEXT, HUGE),
        "min_tokens": (-1, CONTEXT, HUGE),
        "temperature": (-0.1, 1e308, "1"),
        "top_p": (-0.1, 0.0, 1.1),
        "top_k": (-2, HUGE),
        "min_p": (-0.1, 1.1),
        "seed": (2**64, -(2**64)),
        "repetition_penalty": (0, -1, 1e308),
        "presence_penalty": (-2.1, 2.1),
        "frequency_penalty": (-2.1, 2.1),
        "top_logprobs": (21, -1),
        "prompt_logprobs": (21, -1),
        "truncate_prompt_tokens": (0, -2, HUGE),
        "priority": (HUGE, -HUGE),
        "dimensions": (0, -1, HUGE),
        "top_n": (-1, HUGE),
        "ttft_deadline_ms": (0, -1, 1e999),
        "e2e_deadline_ms": (0, -1, 1e999),
        "stream_interval": (0, 1025),
    }.items():
        for value in values:
            fields = {name: value} | ({"logprobs": True} if name == "top_logprobs" else {})
            yield Limit(f"{name}={value}", (name,), sets(**fields))


def _lists() -> Iterator[Limit]:
    for name, value in {
        "stop": ["a"] * 17,
        "stop_sequences": ["a"] * 17,
        "stop_token_ids": [1] * 4097,
        "logit_bias": {str(i): 1 for i in range(4097)},
        "allowed_token_ids": [],
        "metadata": {str(i): "x" for i in range(17)},
        "tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(129)],
    }.items():
        yield Limit(f"number of {name}", (name,), sets(**{name: value}))
    for name in ("stop_token_ids", "allowed_token_ids"):
        for token in (-1, VOCAB_SIZE, 2**64):
            yield Limit(f"{name} {token}", (name,), sets(**{name: [token]}))
    for key in (str(VOCAB_SIZE), "-1", "1.0", "01", "x", DIGITS):
        yield Limit(f"logit_bias {key:.5}", ("logit_bias",), sets(logit_bias={key: 1}))
    for bias in (101, -101, 1e308, "1"):
        yield Limit(f"logit_bias to {bias}", ("logit_bias",), sets(logit_bias={"1": bias}))


def _texts() -> Iterator[Limit]:
    for name in ("stop", "stop_sequences"):
        yield Limit(f"length of {name}", (name,), sets(**{name: ["x" * 257]}))
        yield Limit(f"an empty one in {name}", (name,), sets(**{name: [""]}))
    for name in ("user", "safety_identifier"):
        yield Limit(f"length of {name}", (name,), sets(**{name: "x" * 129}))
    yield Limit("length of cache_salt", ("cache_salt",), sets(cache_salt="x" * 257))
    yield Limit("no cache_salt", ("cache_salt",), sets(cache_salt=""))
    yield Limit("encoding_format", ("encoding_format",), sets(encoding_format="x" * 1000))
    yield Limit("service_tier", ("service_tier",), sets(service_tier="x" * 1000))
    yield Limit("reasoning_effort", ("reasoning_effort",), sets(reasoning_effort="x" * 1000))
    for name in ("x-gateway-inference-fairness-id", "x-llm-d-inference-fairness-id"):
        yield Limit(f"length of {name}", ("user",), headers={name: "x" * 129})


def _forms() -> Iterator[Limit]:
    long, deep = {"enum": ["x" * 140_000]}, nested(70)
    for what, schema in (("long", long), ("deep", deep)):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        yield Limit(f"a {what} schema", ("response_format",), sets(response_format=form))
        yield Limit(f"a {what} schema of vLLM's", ("structured_outputs",), sets(structured_outputs={"json": schema}))
        yield Limit(f"a {what} schema, guided", ("guided_json",), sets(guided_json=schema))
    yield Limit("a long regex", ("structured_outputs",), sets(structured_outputs={"regex": "x" * 140_000}))
    yield Limit("a long grammar", ("structured_outputs",), sets(structured_outputs={"grammar": "x" * 140_000}))
    yield Limit("choices", ("structured_outputs",), sets(structured_outputs={"choice": ["x"] * 4097}))
    yield Limit("a long regex, guided", ("guided_regex",), sets(guided_regex="x" * 140_000))
    yield Limit("choices, guided", ("guided_choice",), sets(guided_choice=["x"] * 4097))


def _unsupported() -> Iterator[Limit]:
    """What would let a client bring code, or be an unbounded loop, on any route that makes text of messages."""
    yield Limit("a template", ("messages",), sets(chat_template="{% for i in range(10**9) %}{% endfor %}"))
    yield Limit("a template, of text", ("prompt",), sets(chat_template="{{ 1 }}"))
    yield from _of_responses()
    yield from _of_messages()
    for name, value in (
        ("tokenize", True),
        ("messages", []),
        ("chat_template", "{{ 1 }}"),
        ("__class__", 1),
        ("x" * 1000, 1),
        ("add_generation_prompt", [[]]),
    ):
        kwargs: Body = {"chat_template_kwargs": {name: value}}
        yield Limit(f"template argument {name:.9}", ("chat_template_kwargs",), sets(**kwargs))
    for name in ("logits_processors", "custom_logit_processor", "prompt_embeds", "lora_path", "kv_transfer_params"):
        yield Limit(name, ("prompt",), sets(**{name: "x"}))
        yield Limit(f"{name} in chats", ("messages",), sets(**{name: "x"}))


def _of_responses() -> Iterator[Limit]:
    """What the Responses API has and others have not."""
    yield Limit("tokens of instructions", ("instructions",), sets(instructions="x" * 2 * CONTEXT))
    for name, value in {
        "truncation": "auto",
        "chat_template": "{{ 1 }}",
        "logits_processors": "x",
        "kv_transfer_params": "x",
        "prompt": {"id": "x", "variables": {"a": "b"}},
        "tool_choice": {"type": "x" * 1000},
        "max_tokens": 2,
    }.items():
        yield Limit(f"{name} of a response", ("instructions",), sets(**{name: value}))
    for number in (0, -1, HUGE):
        yield Limit(f"max_tool_calls={number}", ("max_tool_calls",), sets(max_tool_calls=number))
    functions = [{"type": "function", "name": f"f{i}"} for i in range(129)]
    yield Limit("129 functions", ("instructions",), sets(tools=functions))
    for tool in ("web_search", "code_interpreter", "mcp", "x" * 1000):
        yield Limit(f"tool {tool:.20}", ("instructions",), sets(tools=[{"type": tool}]))
    for kind in ("input_image", "input_file", "input_audio", "x" * 1000):
        said = [{"role": "user", "content": [{"type": kind, "image_url": "http://127.0.0.1:1", "file_id": "x"}]}]
        yield Limit(f"part {kind:.20}", ("instructions",), sets(input=said))
    yield Limit("many items", ("instructions",), sets(input=[{"role": "user", "content": ""}] * 10_001))
    yield Limit("an item of the past", ("instructions",), sets(input=[{"type": "item_reference", "id": "x"}]))
    yield Limit("what no call gave", ("instructions",), sets(input=[GAVE]))
    yield Limit("include", ("include",), sets(include=["x" * 1000]))
    for reasoning in ("high", {"effort": "x" * 1000}, {"summary": "concise"}):
        yield Limit(f"reasoning {reasoning!s:.20}", ("reasoning",), sets(reasoning=reasoning))
    for what, schema in (("long", {"enum": ["x" * 140_000]}), ("deep", nested(70)), ("no", None)):
        form = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
        yield Limit(f"a {what} schema of a response", ("instructions",), sets(text=form))
    for metadata in ({"x" * 65: ""}, {"x": "y" * 513}):
        yield Limit(f"metadata {metadata!s:.9}", ("instructions",), sets(metadata=metadata))


GAVE = {"type": "function_call_output", "call_id": "x", "output": "x"}


def _of_messages() -> Iterator[Limit]:
    """What Anthropic's API has and others have not."""
    systems: tuple[Any, ...] = (5, [1], {}, [{"type": "image"}], "x" * 2 * CONTEXT)
    for system in systems:
        yield Limit(f"system {system!s:.20}", ("system",), sets(system=system))
    for thinking in (
        "enabled",
        {},
        {"type": "x" * 1000},
        {"type": "enabled"},
        {"type": "enabled", "budget_tokens": 0},
        {"type": "enabled", "budget_tokens": 2**63},
        {"type": "between_tools"},
    ):
        yield Limit(f"thinking {thinking!s:.40}", ("thinking",), sets(thinking=thinking))
    for schema in ({"enum": ["x" * 140_000]}, nested(70), None):
        form = {"type": "json_schema", "schema": schema}
        yield Limit(
            f"a schema of a message {schema!s:.20}", ("output_config", "stream"), sets(output_config={"format": form})
        )
    yield Limit("an effort", ("output_config",), sets(output_config={"effort": "x" * 1000}))
    yield Limit("long user_id", ("metadata", "system"), sets(metadata={"user_id": "x" * 1025}))
    for kind in ("image", "document", "search_result", "server_tool_use", "redacted_thinking", "container_upload"):
        said = [{"role": "user", "content": [{"type": kind, "source": {"type": "url", "url": "http://127.0.0.1:1"}}]}]
        yield Limit(f"block {kind}", ("system", "messages"), sets(messages=said))


BOUNDLESS = frozenset(
    {
        "add_generation_prompt", "add_special_tokens", "continue_final_message", "echo", "explain", "ignore_eos",
        "include_reasoning", "include_stop_str_in_output", "logprobs", "parallel_tool_calls", "return_token_ids",
        "normalize", "partial", "raw_scores", "return_documents", "return_text", "truncate", "use_activation",
        "return_token_strs", "skip_special_tokens", "stream", "stream_options", "guided_json_object",
        "tool_choice",  # names one of the tools, whose number is bounded
        "guided_grammar", "guided_whitespace_pattern",  # bounded with those of structured_outputs
        "store", "text",  # whose schema is bounded with that of response_format
        "request_id",  # longer ones are not repeated: see test_surface.py
    }
)  # fmt: skip
"""Fields that are a switch, or are bounded by something else that is listed."""
