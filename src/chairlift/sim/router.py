"""Which engine of a fleet serves a request, chosen when it arrives and never again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from chairlift.core.errors import InvalidOption
from chairlift.core.prefix import begin_chain, content_at, key_after, num_given_keys
from chairlift.core.types import Request
from chairlift.sim.replica import Replica
from chairlift.sim.workload import Asked


class Router(Protocol):
    """Sees the fleet as it is at that moment: an ideal one, whose knowledge is never late.

    One that looks into schedulers tells the replicas first (`Replica.catch_up`).
    """

    def route(self, asked: Asked, request: Request, replicas: Sequence[Replica]) -> int:
        """Index of the replica that serves it."""
        ...


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._next = 0

    def route(self, asked: Asked, request: Request, replicas: Sequence[Replica]) -> int:
        index = self._next % len(replicas)
        self._next = index + 1
        return index


class LeastQueued:
    """Fewest requests that wait or run, for each slot that the replica has."""

    def route(self, asked: Asked, request: Request, replicas: Sequence[Replica]) -> int:
        return _least([r.num_queued / r.scheduler.limits.max_num_seqs for r in replicas])


class LeastKV:
    """Smallest share of the cache that is held, or will be by the prompts that wait."""

    def route(self, asked: Asked, request: Request, replicas: Sequence[Replica]) -> int:
        for replica in replicas:
            replica.catch_up(request.arrival)
        return _least([_load_blocks(replica) / replica.scheduler.kv.pool.num_blocks for replica in replicas])


class PrefixAware:
    """Least work: prompt tokens that are not cached there, and, times `load_weight`, what the replica holds already.

    Both in tokens. With a weight of 0 whoever has the longest prefix gets all that begins so; with a large one this is
    `LeastKV` among equal replicas.
    """

    def __init__(self, load_weight: float = 0.1) -> None:
        self._load_weight = load_weight

    def route(self, asked: Asked, request: Request, replicas: Sequence[Replica]) -> int:
        num_tokens = len(request.prompt)
        for replica in replicas:
            replica.catch_up(request.arrival)
        hits = _cached_tokens(request, replicas)
        return _least(
            [
                num_tokens - hit + self._load_weight * _load_blocks(replica) * replica.scheduler.kv.block_size
                for hit, replica in zip(hits, replicas, strict=True)
            ]
        )


class SessionSticky:
    """The replica that served the session before; what begins one, or has none, goes where `otherwise` says."""

    def __init__(self, otherwise: Router) -> None:
        self._otherwise = otherwise
        self._places: dict[str, int] = {}

    def route(self, asked: Asked, request: Request, replicas: Sequence[Replica]) -> int:
        if asked.session is None:
            return self._otherwise.route(asked, request, replicas)
        place = self._places.get(asked.session)
        if place is None:
            place = self._places[asked.session] = self._otherwise.route(asked, request, replicas)
        return place


ROUTERS: dict[str, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    "least-queued": LeastQueued,
    "least-kv": LeastKV,
    "prefix-aware": PrefixAware,
    "session-sticky": lambda: SessionSticky(LeastQueued()),
}
"""By the name that users give."""


def make_router(name: str) -> Router:
    """Raises InvalidOption for a name that nothing has."""
    try:
        return ROUTERS[name]()
    except KeyError:
        raise InvalidOption(f"there is no router {name!r}, only {', '.join(ROUTERS)}") from None


def _least(values: list[float]) -> int:
    """Index of the smallest; the first of several."""
    return min(range(len(values)), key=values.__getitem__)


def _load_blocks(replica: Replica) -> int:
    """Blocks that are held, and that the prompts without a first token are going to hold at most."""
    kv = replica.scheduler.kv
    return kv.pool.num_held + kv.num_blocks_for(replica.num_waiting_tokens)


def _cached_tokens(request: Request, replicas: Sequence[Replica]) -> list[int]:
    """Leading prompt tokens that each replica has computed and still keeps."""
    sizes = {replica.scheduler.kv.block_size for replica in replicas}
    found = [0] * len(replicas)
    for size in sorted(sizes):
        looking = [i for i, replica in enumerate(replicas) if replica.scheduler.kv.block_size == size]
        num_blocks = (len(request.prompt) - 1) // size
        chain = begin_chain(request)
        num_given = min(num_given_keys(request), num_blocks)
        for i in looking:
            found[i] = len(replicas[i].scheduler.kv.index.leading(chain, num_given)) * size
        looking = [i for i in looking if found[i] == num_given * size]
        parent = chain[num_given]
        for block in range(num_given, num_blocks):
            content = content_at(request, request.prompt, block, size)
            key = key_after(parent, content)
            looking = [i for i in looking if replicas[i].scheduler.kv.index.find(key, parent, content) is not None]
            if not looking:
                break
            for i in looking:
                found[i] = (block + 1) * size
            parent = key
    return found
