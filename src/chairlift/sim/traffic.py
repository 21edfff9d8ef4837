"""Drawn workloads: streams of requests with arrivals and lengths from distributions, and closed loops.

Each stream draws from random streams of its own, named after it: another stream beside it changes nothing in it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from random import Random

from chairlift.core.errors import InvalidOption
from chairlift.sim.arrivals import Arrivals
from chairlift.sim.lengths import MAX_TOKENS, Fixed, Lengths
from chairlift.sim.workload import Asked, Blocks, Contents, Part, Workload, blocks

PROMPT, OUTPUT, ONCE = Fixed(1000), Fixed(150), Fixed(1)
"""Lengths of what is not said otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What the requests of one stream are like.

    `prefix` tokens in front are the same in all of them. With `turns` each request is the first of a conversation: the
    next turn comes `think_s` seconds (the mean of an exponential) after the answer, and its prompt is all that was said
    before and a new message of `prompt` tokens.
    """

    name: str = ""
    prompt: Lengths = PROMPT
    output: Lengths = OUTPUT
    prefix: int = 0
    turns: Lengths = ONCE
    think_s: float = 0.0
    priority: int = 0
    principal: str = ""
    tenant: str = ""
    ttft_within_s: float | None = None
    e2e_within_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.prefix <= MAX_TOKENS or not 0.0 <= self.think_s < math.inf:
            raise InvalidOption("a shared prefix and a time to think must be at least 0, and not endless")


class Stream:
    """Draws the requests of a kind, one after the other."""

    def __init__(self, kind: Kind, contents: Contents, seed: int) -> None:
        self._kind = kind
        self._contents = contents
        self._random = Random(f"{seed}/{kind.name}/requests")
        self._prefix = (Part(first := contents.take(), first, kind.prefix),) if kind.prefix else ()
        self._num_sessions = 0

    def draw(self, arrival: float) -> Asked:
        """The next request, or the first turn of the next conversation."""
        kind = self._kind
        num_turns = kind.turns.draw(self._random)
        session = None
        if num_turns > 1:
            session = f"{kind.name}{self._num_sessions}"
            self._num_sessions += 1
        return self._turn(arrival, self._prefix, num_turns, session)

    def _turn(self, arrival: float, said: tuple[Part, ...], num_turns: int, session: str | None) -> Asked:
        kind, random = self._kind, self._random
        prompt = blocks(*said, self._fresh(kind.prompt.draw(random)))
        num_output = kind.output.draw(random)
        asked = Asked(
            arrival=arrival,
            prompt=prompt,
            num_output=num_output,
            priority=kind.priority,
            principal=kind.principal,
            tenant=kind.tenant,
            session=session,
            ttft_within_s=kind.ttft_within_s,
            e2e_within_s=kind.e2e_within_s,
        )
        if num_turns <= 1:
            return asked
        think_s = random.expovariate(1.0 / kind.think_s) if kind.think_s else 0.0
        said = (*prompt.parts, self._fresh(num_output))
        return replace(asked, follow=lambda now: [self._turn(now + think_s, said, num_turns - 1, session)])

    def _fresh(self, num_tokens: int) -> Part:
        content = self._contents.take()
        return Part(content, content, num_tokens)


def open_loop(kind: Kind, arrivals: Arrivals, contents: Contents, seed: int, num_requests: int | None) -> Workload:
    """Requests that arrive whatever becomes of those before them; endless without a number."""
    stream = Stream(kind, contents, seed)
    times = arrivals.times(Random(f"{seed}/{kind.name}/arrivals"))
    return (stream.draw(time) for time in (times if num_requests is None else islice(times, num_requests)))


class ClosedLoop:
    """`num_users` who each ask, wait for the answer, think for `think_s` seconds (the mean of an exponential), and ask
    again, until `num_requests` were asked in all."""

    def __init__(
        self, kind: Kind, num_users: int, think_s: float, contents: Contents, seed: int, num_requests: int
    ) -> None:
        if num_users < 1 or num_requests < 1:
            raise InvalidOption("a closed loop needs users, and requests")
        if kind.turns != ONCE:
            raise InvalidOption("users of a closed loop ask one thing at a time: leave out the turns")
        self._stream = Stream(kind, contents, seed)
        self._random = Random(f"{seed}/{kind.name}/thinking")
        self._think_s = think_s
        self._num_users = num_users
        self._num_left = num_requests

    def __iter__(self) -> Iterator[Asked]:
        for _ in range(self._num_users):
            yield from self._ask(0.0)

    def _ask(self, now: float) -> list[Asked]:
        if not self._num_left:
            return []
        self._num_left -= 1
        return [replace(self._stream.draw(now), follow=self._go_on)]

    def _go_on(self, now: float) -> list[Asked]:
        return self._ask(now + (self._random.expovariate(1.0 / self._think_s) if self._think_s else 0.0))


def merged(workloads: Iterable[Workload]) -> Workload:
    """All of them together, in the order of arrival."""
    return heapq.merge(*workloads, key=lambda asked: asked.arrival)


def until(workload: Workload, seconds: float) -> Workload:
    """What arrives before then; also of what follows an answer."""
    for asked in workload:
        if asked.arrival >= seconds:
            return
        yield from _changed([asked], lambda one: one if one.arrival < seconds else None)


def faster(workload: Workload, factor: float) -> Workload:
    """The same requests, arriving `factor` times as fast. What follows an answer keeps its time to think."""
    if not factor > 0.0:
        raise InvalidOption("a workload can be sped up by a factor above 0")
    for asked in workload:
        yield replace(asked, arrival=asked.arrival / factor)


def without_contents(workload: Workload) -> Workload:
    """The same lengths, and no two prompts that begin alike: what a prefix cache is worth, by leaving it nothing."""
    contents = Contents()

    def apart(asked: Asked) -> Asked:
        content, num_tokens = contents.take(), asked.prompt.num_tokens
        return replace(asked, prompt=Blocks((Part(content, content, num_tokens),), num_tokens))

    return _changed(workload, apart)


def _changed(workload: Workload, change: Callable[[Asked], Asked | None]) -> Iterator[Asked]:
    """What `change` makes of each request, and of each that follows an answer, in its turn; None for one less."""
    for asked in workload:
        one = change(asked)
        if one is not None:
            follow = one.follow
            yield one if follow is None else replace(one, follow=partial(_follow_changed, follow, change))


def _follow_changed(
    follow: Callable[[float], Workload], change: Callable[[Asked], Asked | None], now: float
) -> Workload:
    return _changed(follow(now), change)
