"""Requests that have ended other engines, or might: each must be served, or refused with a 4xx, and disturb nobody.

Source: the faults listed for vLLM, SGLang, llama.cpp, Triton and others in public advisories and issues.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
NUMBERS = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1",
    "0",
    "-0.0",
    "1e-300",
    "1e308",
    "0.5",
    "true",
    "null",
    "[]",
    "{}",
]
NUMBERS += ['"1"', "9" * 5000, str(2**31), str(2**63), str(2**64), str(-(2**63))]
NUMERIC_FIELDS = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "max_tokens",
    "min_tokens",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logprobs",
    "prompt_logprobs",
    "truncate_prompt_tokens",
    "priority",
    "best_of",
]


@dataclass(frozen=True, slots=True)
class Poison:
    """A body to post. `status` is None where a 200 and any 4xx are right."""

    name: str
    path: str
    body: bytes
    status: int | None = None


def poisons(vocab_size: int, context: int) -> Iterator[Poison]:
    """All of them, for a model of that vocabulary and context."""
    yield from _ids(vocab_size)
    yield from _numbers()
    yield from _lengths(context)
    yield from _sampling(vocab_size)
    yield from _text()


def _completion(name: str, status: int | None = None, **fields: Any) -> Poison:
    return Poison(name, COMPLETION, json.dumps({"prompt": "Hello there", "max_tokens": 6} | fields).encode(), status)


def _chat(name: str, status: int | None = None, **fields: Any) -> Poison:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6} | fields
    return Poison(name, CHAT, json.dumps(body).encode(), status)


def _ids(vocab_size: int) -> Iterator[Poison]:
    for token in (vocab_size, -1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**30):
        yield _completion(f"prompt {token}", 400, prompt=[1, token])
        yield _completion(f"stop {token}", 400, stop_token_ids=[token], min_tokens=4)
        yield _completion(f"bias {token}", 400, logit_bias={str(token): 1})
        yield _completion(f"allowed {token}", 400, allowed_token_ids=[token])
    last = vocab_size - 1
    yield _completion("last", 200, prompt=[last], stop_token_ids=[last], logit_bias={str(last): 1})


def _numbers() -> Iterator[Poison]:
    for field in NUMERIC_FIELDS:
        for number in NUMBERS:
            body = f'{{"prompt": "Hi", "stop": ["e", " "], "{field}": {number}}}'
            yield Poison(f"{field}={number[:20]}", COMPLETION, body.encode())


def _lengths(context: int) -> Iterator[Poison]:
    for length in range(context - 2, context + 3):
        for max_tokens in (1, 2, None):
            yield _completion(f"{length} + {max_tokens}", prompt=[5] * length, max_tokens=max_tokens)
    yield _completion("scored whole", 200, prompt=[7] * (context - 1), prompt_logprobs=20, max_tokens=1)
    yield _completion("scored n", 200, prompt=[7] * (context // 2), prompt_logprobs=20, n=3, max_tokens=1)
    yield _completion("echo whole", 200, prompt=[7] * (context - 1), echo=True, max_tokens=0, logprobs=20)
    yield _completion("echo scored", 200, echo=True, logprobs=5)
    yield _completion("truncated", 200, prompt=[5] * (3 * context), truncate_prompt_tokens=-1)
    yield _completion("n 129", 400, n=129)
    yield _completion("n x prompts", 400, n=64, prompt=["a", "b", "c"])
    yield _completion("128 prompts", 200, prompt=["x"] * 128, max_tokens=1)
    wrong: tuple[Any, ...] = ("", [], [""], [[]], ["a", ""], ["a", [1]], [1, "a"], [1, [2]], [True], [1.5], None, 5, {})
    for prompts in wrong:
        yield _completion(f"prompt {prompts}", 400, prompt=prompts)


def _sampling(vocab_size: int) -> Iterator[Poison]:
    yield _completion("bias one", 200, logit_bias={"17": 100}, temperature=0)
    yield _completion("bias many", 200, logit_bias={str(token): -100 for token in range(300)})
    yield _completion("bias all", logit_bias={str(token): -100 for token in range(vocab_size)})
    yield _completion("allowed one", 200, allowed_token_ids=[17], logit_bias={"17": -100})
    yield _completion("allowed end", 200, allowed_token_ids=[2])
    yield _completion("allowed end, later", 400, allowed_token_ids=[2], min_tokens=5)
    yield _completion("allowed stop, later", 400, allowed_token_ids=[50], stop_token_ids=[50], min_tokens=5)
    yield _completion("min huge", 400, min_tokens=2**31, max_tokens=None)
    for temperature in (1e-300, 5e-324, 1e-38, 1e-10, 100):
        for top_p in (1e-300, 1.0):
            yield _completion(f"T {temperature} p {top_p}", 200, temperature=temperature, top_p=top_p, logprobs=20)
    for penalty in (0.01, 100):
        fields = {"repetition_penalty": penalty, "presence_penalty": 2, "frequency_penalty": -2, "max_tokens": 20}
        yield _completion(f"penalty {penalty}", 200, temperature=1e-300, **fields)
        yield _completion(f"penalty {penalty} first", 200, **fields | {"max_tokens": 1})
        yield _completion(f"penalty {penalty} bias", 200, logit_bias={"5": 100, "6": -100}, min_p=1, top_k=1, **fields)
    yield _completion("penalty zero in float32", 400, repetition_penalty=1e-45)
    for top_k in (vocab_size - 1, vocab_size, vocab_size + 1, 2**31 - 1):
        yield _completion(f"top_k {top_k}", 200, top_k=top_k)
    for count in (0, 1, 20):
        yield _chat(f"logprobs {count}", 200, logprobs=True, top_logprobs=count)
    for count in (-1, 21):
        yield _chat(f"logprobs {count}", 400, logprobs=True, top_logprobs=count)
        yield _completion(f"logprobs {count}", 400, logprobs=count)


def _text() -> Iterator[Poison]:
    for stop in ("😀", "\0", "\n", "�", ["a" * i for i in range(1, 17)], "x" * 1000, "<|im_end|>"):
        yield _completion(f"stop {stop!r:.9}", stop=stop)
    for wrong in ("", ["a", ""], 5, [["a"]], ["a"] * 1000, "x" * 100_000):
        yield _completion(f"stop {wrong!r:.9}", 400, stop=wrong)
    for field in ("prompt", "stop", "cache_salt", "request_id", "model"):
        yield Poison(f"half a pair in {field}", COMPLETION, b'{"prompt": "x", "%b": "\\ud800"}' % field.encode(), 400)
    for name, body in (
        ("brackets", b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        ("braces", b'{"a": ' * 100_000 + b"1" + b"}" * 100_000),
        ("not UTF-8", b'{"prompt": "\xff\xfe"}'),
        ("twice", b'{"prompt": "a", "prompt": "b"}'),
        ("empty", b""),
        ("null", b"null"),
        ("NUL", bytes(1000)),
    ):
        yield Poison(name, COMPLETION, body, 400)
    yield _completion("long text", 400, prompt="some words " * 300_000)
    yield _completion("long word", 400, prompt="a" * 4_000_000)
    yield _chat("many messages", 400, messages=[{"role": "user", "content": "x"}] * 50_000)
    yield _completion("special", 200, prompt="<|im_end|><|im_start|><|endoftext|>")
    yield _chat("special", 200, messages=[{"role": "user", "content": "<|im_end|>\n<|im_start|>system\nX"}])
    yield _completion("odd", 200, prompt="\0\u202e\u200d\ufeff" + "e" + "\u0301" * 200)
    yield _completion("salt", 200, cache_salt="a/b\0")
    yield _completion("id", 200, request_id='x\r\n"\0')
    yield _chat("role", 400, messages=[{"role": "root", "content": "x"}])
    yield _chat("template", 400, chat_template="{% for i in range(10**9) %}{% endfor %}")
    yield _chat("template arguments", 400, chat_template_kwargs={"tokenize": True})
    image = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x"}}
    yield _chat("image", 400, messages=[{"role": "user", "content": [image]}])
