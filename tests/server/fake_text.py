"""A model's text without a model: every byte is a token, 256 ends a sequence, 257 begins a message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from chairlift.core.errors import InvalidRequest
from chairlift.core.types import SamplingParams
from chairlift.server.ports import TokenText

END = 256
TURN = 257
VOCAB_SIZE = 258


class FakeStream:
    """Bytes to text, cut before a stop string. Slow and plain on purpose: it is what the real one is compared with."""

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._tokens: list[int] = []
        self._given = 0

    def push(self, tokens: Sequence[int]) -> str:
        self._tokens += tokens
        return self._more(final=False)

    def finish(self) -> str:
        return self._more(final=True)

    def _more(self, *, final: bool) -> str:
        data = bytes(token for token in self._tokens if token < END)
        text = data.decode("utf-8", "replace" if final else "ignore")
        stops = self._params.stop
        ends = [(text.index(stop) + len(stop), stop) for stop in stops if stop in text]
        if ends:
            end, stop = min(ends)
            text = text[: end if self._params.include_stop_str_in_output else end - len(stop)]
        elif not final:
            held = max(
                (size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])), default=0
            )
            text = text[: len(text) - held]
        piece, self._given = text[self._given :], max(self._given, len(text))
        return piece


class FakeText:
    """What the server needs of a model's text."""

    vocab_size = VOCAB_SIZE
    eos_token_ids = (END,)
    sampling_defaults: Mapping[str, float | int] = MappingProxyType({})

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return ([TURN] if add_special_tokens and text else []) + list(text.encode())

    def encode_chat(self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool) -> list[int]:
        if messages[0]["role"] == "assistant":
            raise InvalidRequest("a chat must not begin with the assistant", "messages")
        ids: list[int] = []
        for message in messages:
            ids += [TURN, *f"{message['role']}:{message['content']}".encode(), END]
        return [*ids, TURN] if add_generation_prompt else ids

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < END).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        return bytes((token,)) if token < END else b""

    def streams(self, params: SamplingParams, *, skip_special_tokens: bool) -> Callable[[], TokenText]:
        return lambda: FakeStream(params)
