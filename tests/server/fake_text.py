"""A model's text without a model: every byte is a token, 256 ends a sequence, 257 begins a message."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from chairlift.core.errors import InvalidRequest
from chairlift.core.types import SamplingParams
from chairlift.server.ports import ChatManners, ChatPrompt, TokenText
from chairlift.text.stops import StopAutomaton
from chairlift.text.stream import TextStream

END = 256
TURN = 257
VOCAB_SIZE = 258


class FakeText:
    """What the server needs of a model's text, and what a text stream needs of a tokenizer."""

    vocab_size = VOCAB_SIZE
    eos_token_ids = (END,)
    sampling_defaults: Mapping[str, float | int] = MappingProxyType({})

    manners = ChatManners()
    opening = b""
    """What a prompt puts before an answer."""

    def __init__(self) -> None:
        self._bytes = [bytes((byte,)) for byte in range(256)] + [b""] * 2

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return ([TURN] if add_special_tokens and text else []) + list(text.encode())

    def encode_chat(self, prompt: ChatPrompt) -> list[int]:
        if prompt.messages[0]["role"] == "assistant":
            raise InvalidRequest("a chat must not begin with the assistant", "messages")
        ids: list[int] = []
        if prompt.tools:
            ids += [TURN, *f"tools:{json.dumps(prompt.tools)}".encode(), END]
        for message in prompt.messages:
            ids += [TURN, *f"{message['role']}:{message['content']}".encode()]
            if message.get("tool_calls"):
                ids += json.dumps(message["tool_calls"]).encode()
            ids.append(END)
        if prompt.continue_final_message:
            return ids[:-1]
        return [*ids, TURN, *self.opening] if prompt.add_generation_prompt else ids

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(self._bytes[token] for token in tokens).decode("utf-8", "replace")

    def spell(self, tokens: Sequence[int]) -> str:
        spelled = {END: b"<end>", TURN: b"<turn>"}
        return b"".join(spelled.get(token) or self._bytes[token] for token in tokens).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        return self._bytes[token]

    def bytes_of(self, skip_special_tokens: bool) -> list[bytes]:
        return self._bytes

    def streams(
        self, params: SamplingParams, *, skip_special_tokens: bool, shown: Sequence[str] = (), continues: bool = True
    ) -> Callable[[], TokenText]:
        stops = StopAutomaton(params.stop)
        return lambda: TextStream(
            self,  # type: ignore[arg-type]  # a tokenizer as far as a stream looks at it
            stops,
            params.include_stop_str_in_output,
            skip_special_tokens,
            params.min_tokens,
        )
