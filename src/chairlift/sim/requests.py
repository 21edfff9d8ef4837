"""From what is asked to what an engine gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from chairlift.core.types import BlockKeys, Request, SamplingParams
from chairlift.sim.keys import KeyMaker
from chairlift.sim.workload import Asked, Prompt


class Keyed(Sequence[int]):
    """The tokens of a prompt whose first `num_keyed` nobody needs: those are spelled when somebody reads them."""

    __slots__ = ("_num_keyed", "_prompt", "_rest")

    def __init__(self, prompt: Prompt, num_keyed: int) -> None:
        self._prompt = prompt
        self._num_keyed = num_keyed
        self._rest = prompt.tokens(num_keyed)

    def __len__(self) -> int:
        return self._num_keyed + len(self._rest)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1 and start >= self._num_keyed:
                return self._rest[start - self._num_keyed : stop - self._num_keyed]
        return self._prompt.tokens()[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._prompt.tokens())


class RequestMaker:
    """Makes the engine's requests. Parameters are made once for each length: checking them costs more than a step.

    With `keys`, prompts come with keys of their blocks as far as they have some.
    """

    def __init__(self, keys: KeyMaker | None = None) -> None:
        self._params: dict[int, SamplingParams] = {}
        self._keys = keys

    def make(self, request_id: int, asked: Asked) -> Request:
        params = self._params.get(asked.num_output)
        if params is None:
            params = self._params[asked.num_output] = SamplingParams(max_tokens=asked.num_output, ignore_eos=True)
        prompt, given = self._prompt(asked.prompt)
        ttft, e2e = asked.ttft_within_s, asked.e2e_within_s
        return Request(
            id=request_id,
            prompt=prompt,
            params=params,
            arrival=asked.arrival,
            n=asked.n,
            priority=asked.priority,
            principal=asked.principal,
            tenant=asked.tenant,
            ttft_deadline=None if ttft is None else asked.arrival + ttft,
            e2e_deadline=None if e2e is None else asked.arrival + e2e,
            block_keys=given,
        )

    def _prompt(self, prompt: Prompt) -> tuple[Sequence[int], BlockKeys | None]:
        """Its tokens, and the keys that make most of them needless."""
        blocks = prompt.blocks
        if self._keys is None or blocks is None:
            return prompt.tokens(), None
        given = BlockKeys(self._keys.block_size, self._keys.keys(blocks))
        return (Keyed(prompt, given.num_tokens), given) if given.keys else (prompt.tokens(), None)
