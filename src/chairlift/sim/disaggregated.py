"""Prompts computed on one pool of engines and decoded on another, around schedulers that know nothing of it.

    arrival -> prefill engine: the prompt, one token -> link: latency + bytes / bandwidth -> decode engine: the rest

To the prefill engine it is a request for one token. To the decode engine it is a request whose prompt has that token at
its end and whose keys and values are cached already: just before it is queued, the full blocks of the prompt are put
into the prefix index, as if a request with the same prompt had ended there a moment ago. No rule of a scheduler is
changed, and that is what it costs:
- the prompt's last, partly filled block is not findable: the first step on the decode engine computes those tokens
  again (fewer than a block, in a chunk with the first generated token) instead of decoding one row;
- nobody holds the blocks before the request joins. If it waits long for a slot in a cache that is full, they go, and
  the decode engine computes the prompt again (`num_lost_tokens` counts that; a real one would let the transfer wait);
- what the prefill engine keeps of the prompt is free for others from the moment of its token, before the transfer ends;
- transfers do not disturb each other, and whole prompts are sent, also what the decode engine has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from chairlift.core.errors import InvalidOption
from chairlift.core.kv import KVCache
from chairlift.core.prefix import Key, content_at, key_after, root_key
from chairlift.core.types import Request
from chairlift.sim.replica import Replica
from chairlift.sim.result import Result, is_completed
from chairlift.sim.router import Router
from chairlift.sim.run import Simulation, Watcher
from chairlift.sim.served import Served, Stretch
from chairlift.sim.workload import ANSWER_TOKEN, Asked, Blocks, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How keys and values get from one engine to another; `bandwidth` is in bytes a second.

    Raises:
        InvalidOption: a value out of range.
    """

    token_bytes: int
    bandwidth: float = math.inf
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if self.token_bytes < 1 or not self.bandwidth > 0.0 or not 0.0 <= self.latency_s < math.inf:
            raise InvalidOption("a link needs bytes for each token, a bandwidth above 0, and a latency of at least 0")

    def seconds(self, num_tokens: int) -> float:
        """How long the keys and values of so many tokens take."""
        return self.latency_s + num_tokens * self.token_bytes / self.bandwidth


@dataclass(slots=True, eq=False)
class Handover:
    """One request on its way through both pools; its id in each, -1 where it did not come to."""

    asked: Asked
    prefill_id: int = -1
    decode_id: int = -1
    has_gap: bool = False
    """Whether the time between its first two tokens was noted."""


@dataclass(frozen=True, slots=True)
class StagePrompt:
    """What one of the pools is asked: the prompt, and on the decode engine the first token too."""

    handover: Handover
    decodes: bool

    @property
    def num_tokens(self) -> int:
        return self.handover.asked.prompt.num_tokens + self.decodes

    @property
    def blocks(self) -> Blocks | None:
        return self.handover.asked.prompt.blocks

    def tokens(self, start: int = 0) -> list[int]:
        tokens = self.handover.asked.prompt.tokens(start)
        return [*tokens, ANSWER_TOKEN] if self.decodes else tokens


class DisaggregatedSimulation:
    """A run through both pools; see `sim/run.py`. Each pool has a router of its own.

    Raises:
        InvalidOption: an empty pool.
    """

    def __init__(
        self,
        workload: Workload,
        prefill: Sequence[Replica],
        decode: Sequence[Replica],
        link: Link,
        routers: tuple[Router, Router],
    ) -> None:
        if not prefill or not decode:
            raise InvalidOption("both pools need an engine")
        self._link = link
        self._prefill = prefill
        self.simulation = Simulation(
            map(self._asked_to_prefill, workload), [*prefill, *decode], _PoolRouter(len(prefill), *routers)
        )
        """Both pools on one clock. A request that was handed over is two in it."""

    def run(self, until: float = math.inf, watch: Watcher | None = None) -> None:
        """Go on until all is over, or the clock has come to `until`."""
        self.simulation.run(until, watch)

    @property
    def num_lost_tokens(self) -> int:
        """Prompt tokens that decode engines computed although they had been transferred, last blocks aside."""
        num_lost = 0
        for served in self.simulation.served:
            if isinstance(served.asked.prompt, StagePrompt) and served.asked.prompt.decodes and served.finishes:
                finish = served.finishes[0]
                size = self.simulation.replicas[served.replica].scheduler.kv.block_size
                if finish.first_scheduled is not None:
                    num_lost += (finish.num_prompt_tokens - 1) // size * size - finish.num_cached_tokens
        return num_lost

    def result(self) -> Result:
        """What came of it so far, with each request once. One that was handed over belongs to its decode engine."""
        served: list[Served] = []
        for stage in self.simulation.served:
            prompt = stage.asked.prompt
            if isinstance(prompt, StagePrompt) and not prompt.decodes:
                served.append(self._joined(len(served), stage, prompt.handover))
        return Result(served, self.simulation.replicas, self.simulation.now, self._prefill)

    # ------------------------------------------------------------ on the way

    def _asked_to_prefill(self, asked: Asked) -> Asked:
        if asked.n != 1:
            raise InvalidOption("with prefill and decode pools a request has one answer")
        handover = Handover(asked)
        return replace(
            asked, prompt=StagePrompt(handover, False), num_output=1, follow=partial(self._prefilled, handover)
        )

    def _prefilled(self, handover: Handover, now: float) -> Iterable[Asked]:
        """The prefill engine is done with a request: it goes on to a decode engine, unless that was all."""
        asked = handover.asked
        if asked.num_output == 1 or not is_completed(self.simulation.served[handover.prefill_id]):
            return self._follow(asked, now)
        lands = now + self._link.seconds(asked.prompt.num_tokens)
        e2e = asked.e2e_within_s
        return [
            replace(
                asked,
                arrival=lands,
                prompt=StagePrompt(handover, True),
                num_output=asked.num_output - 1,
                ttft_within_s=None,
                e2e_within_s=None if e2e is None else asked.arrival + e2e - lands,
                follow=None if asked.follow is None else partial(self._follow, asked),
            )
        ]

    def _follow(self, asked: Asked, now: float) -> Iterable[Asked]:
        return [] if asked.follow is None else map(self._asked_to_prefill, asked.follow(now))

    # ------------------------------------------------------------ afterwards

    def _joined(self, place: int, first: Served, handover: Handover) -> Served:
        """One request made of what both engines noted of it."""
        if handover.asked.num_output == 1 or not is_completed(first):
            return Served(
                place,
                handover.asked,
                first.replica,
                first.num_left,
                first.error,
                first.first_token,
                [replace(finish, id=place) for finish in first.finishes],
                first.stretches,
            )
        start = [Stretch(stretch.first, 0, 0) for stretch in first.stretches[0]]
        if handover.decode_id < 0:
            return Served(place, handover.asked, first.replica, 1, None, first.first_token, [], {0: start})
        then, begun = self.simulation.served[handover.decode_id], first.finishes[0]
        if then.first_token is not None and begun.first_token is not None and not handover.has_gap:
            handover.has_gap = True
            ledger = self.simulation.replicas[then.replica].ledger
            ledger.gaps.append(then.first_token - begun.first_token)
            ledger.gap_counts.append(1)
        finishes = [
            replace(
                finish,
                id=place,
                num_prompt_tokens=begun.num_prompt_tokens,
                num_output_tokens=begun.num_output_tokens + finish.num_output_tokens,
                num_cached_tokens=begun.num_cached_tokens,
                num_preemptions=begun.num_preemptions + finish.num_preemptions,
                arrival=begun.arrival,
                first_scheduled=begun.first_scheduled,
                first_token=begun.first_token,
            )
            for finish in then.finishes
        ]
        stretches = {0: [*start, *then.stretches.get(0, [])]}
        return Served(
            place, handover.asked, then.replica, then.num_left, then.error, first.first_token, finishes, stretches
        )


class _PoolRouter:
    """Sends a request into the pool whose turn it is, and lands what was transferred on the engine that is chosen."""

    def __init__(self, num_prefill: int, prefill: Router, decode: Router) -> None:
        self._num_prefill = num_prefill
        self._prefill = prefill
        self._decode = decode

    def route(self, asked: Asked, request: Request, replicas: Sequence[Replica]) -> int:
        stage = asked.prompt
        if not isinstance(stage, StagePrompt):
            raise TypeError("a request that was not asked of the pools")
        if not stage.decodes:
            stage.handover.prefill_id = request.id
            return self._prefill.route(asked, request, replicas[: self._num_prefill])
        stage.handover.decode_id = request.id
        pool = replicas[self._num_prefill :]
        index = self._decode.route(asked, request, pool)
        land(pool[index].scheduler.kv, request, len(request.prompt) - 1)
        return self._num_prefill + index


def land(cache: KVCache, request: Request, num_tokens: int) -> int:
    """Put the full blocks of the first `num_tokens` of a request's prompt into a cache, as if they had been computed
    there and nobody held them any longer.

    Gives how many blocks can be found: all, unless the others in the cache are held.
    """
    size, pool, index = cache.block_size, cache.pool, cache.index
    parent: Key = root_key(request.salt)
    held = list[int]()
    for i in range(num_tokens // size):
        content = content_at(request, request.prompt, i, size)
        key = key_after(parent, content)
        block = index.find(key, parent, content)
        if block is not None:
            pool.retain([block])
        elif pool.num_free:
            block, evicted = pool.take()
            if evicted:
                index.forget(block)
            index.publish(block, key, parent, content)
        else:
            break
        held.append(block)
        parent = key
    pool.drop(reversed(held), keep=index.published)
    return len(held)
