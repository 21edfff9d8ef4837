"""The loop of the simulator: engines, a router and a workload on one virtual clock.

    arrival  -->  router  -->  replica: begin ... step end: finish, begin ...

All that happens at one time is heard before any engine plans: arrivals first, then ends of steps. So a request that
arrives as a step ends can be in the next one, as on a real engine whose inbox is emptied before it plans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from chairlift.core.errors import InvalidOption
from chairlift.sim.events import Events, Rank
from chairlift.sim.keys import KeyMaker
from chairlift.sim.replica import Replica
from chairlift.sim.requests import RequestMaker
from chairlift.sim.result import Result
from chairlift.sim.router import Router
from chairlift.sim.served import Served
from chairlift.sim.workload import Asked, Workload

WATCHED_EVENTS = 512
"""Moments between two calls of who watches a run."""

Watcher = Callable[["Simulation"], None]


def simulate(
    workload: Workload,
    replicas: Sequence[Replica],
    router: Router,
    *,
    until: float = math.inf,
    watch: Watcher | None = None,
) -> Result:
    """Serve a workload until all of it is over, or the clock has come to `until`, in seconds."""
    simulation = Simulation(workload, replicas, router)
    simulation.run(until, watch)
    return simulation.result()


class Simulation:
    """A run that can be watched, and gone on with."""

    def __init__(self, workload: Workload, replicas: Sequence[Replica], router: Router) -> None:
        self.replicas = replicas
        self.served: list[Served] = []
        """In the order of arrival; a request's id is its place."""
        self.num_ended = 0
        self._router = router
        self._arrivals: Iterator[Asked] = iter(workload)
        self._events: Events[Asked | int] = Events()
        self._maker = RequestMaker(_keys_of(replicas))
        self._num_to_come = 0
        """Arrivals on the heap, and answers that somebody may ask on after."""
        self._next_arrival = math.inf
        """Of the workload; infinite when it is exhausted."""
        self._until = math.inf
        self._closed = False
        self._ends: list[float] = [math.inf] * len(replicas)
        """Of the steps under way, by engine."""
        self._wakes: list[float] = [math.inf] * len(replicas)
        self._read_arrival()

    @property
    def now(self) -> float:
        return self._events.now

    def result(self) -> Result:
        """What came of it so far."""
        return Result(self.served, self.replicas, self.now)

    def run(self, until: float = math.inf, watch: Watcher | None = None) -> None:
        """Go on until all is over, or the clock has come to `until`.

        Raises:
            InvalidOption: a static batch can never be full.
            RuntimeError: there is work, and nothing will ever be done about it.
        """
        events = self._events
        self._until = until
        num_moments = 0
        while (now := events.next_at) <= until:
            if now == math.inf:
                self._check_all_over()
                break
            awake: set[int] = set()
            self._hear(awake)
            while events.next_at == now:
                self._hear(awake)
            if not self._num_to_come and not self._closed:
                self._closed = True
                for replica in self.replicas:
                    replica.close()
                awake.update(range(len(self.replicas)))
            for index in sorted(awake) if len(awake) > 1 else awake:
                self._begin(index, now)
            num_moments += 1
            if watch is not None and num_moments % WATCHED_EVENTS == 0:
                watch(self)

    def _hear(self, awake: set[int]) -> None:
        """Take the next event."""
        rank, subject = self._events.pop()
        if isinstance(subject, int):
            if rank == Rank.STEP_END:
                replica = self.replicas[subject]
                if not replica.is_busy or self._ends[subject] != self.now:
                    return
                self._end(replica.finish(self.now))
            awake.add(subject)
            return
        if rank == Rank.ARRIVAL:
            self._read_arrival()
        self._arrive(subject, awake)

    def _read_arrival(self) -> None:
        """Put the next arrival of the workload on the heap."""
        asked = next(self._arrivals, None)
        if asked is None:
            self._next_arrival = math.inf
            return
        self._num_to_come += 1
        self._next_arrival = asked.arrival
        self._events.push(asked.arrival, Rank.ARRIVAL, asked)

    def _arrive(self, asked: Asked, awake: set[int]) -> None:
        self._num_to_come -= 1
        request = self._maker.make(len(self.served), asked)
        index = self._router.route(asked, request, self.replicas) if len(self.replicas) > 1 else 0
        served = Served(request.id, asked, index, asked.n)
        self.served.append(served)
        if asked.follow is not None:
            self._num_to_come += 1
        if (end := self.replicas[index].cut(self.now)) is not None:
            self._push_end(index, end)
        if self.replicas[index].add(request, served):
            awake.add(index)
        else:
            self._end([served])

    def _end(self, ended: list[Served]) -> None:
        """Requests are over: what follows them is asked when its time has come."""
        for served in ended:
            self.num_ended += 1
            follow = served.asked.follow
            if follow is None:
                continue
            self._num_to_come -= 1
            for asked in follow(self.now):
                self._num_to_come += 1
                self._events.push(asked.arrival, Rank.FOLLOW_UP, asked)

    def _begin(self, index: int, now: float) -> None:
        """Start the next step of an engine that has none under way, or note when it wants to look again."""
        replica = self.replicas[index]
        if replica.is_busy:
            return
        if self._num_to_come > (self._next_arrival < math.inf):
            # Somebody waits for an answer, to ask on: nobody knows when requests come.
            end = replica.look_ahead(now, self._next_arrival, self._until)
        else:
            now, ended = replica.skip(now, self._next_arrival, self._until)
            if ended:
                self._end(ended)
            end = now if replica.is_busy else None
        if end is None:
            end = replica.begin(now)
        if end is not None:
            self._push_end(index, end)
            return
        if now > self.now:
            self._events.push(now, Rank.WAKE, index)
            return
        self._end(replica.flush())
        wake = replica.wake_at()
        if wake is None:
            return
        if wake <= now:
            raise RuntimeError("the scheduler wants to be woken now, and then does nothing")
        if wake != self._wakes[index]:
            self._wakes[index] = wake
            self._events.push(wake, Rank.WAKE, index)

    def _push_end(self, index: int, end: float) -> None:
        """An engine is busy until then; what was said before of its end does not hold any longer."""
        self._ends[index] = end
        self._events.push(end, Rank.STEP_END, index)

    def _check_all_over(self) -> None:
        for replica in self.replicas:
            if not replica.scheduler.has_work:
                continue
            if replica.scheduler.policy.batching == "static":
                raise InvalidOption(
                    f"{replica.name} waits for ever for its batch to be full: who asks only after an answer needs "
                    "batches that wait for a limited time"
                )
            raise RuntimeError(f"{replica.name} has work, and nothing will ever be done about it")


def _keys_of(replicas: Sequence[Replica]) -> KeyMaker | None:
    """Who makes the keys of all of them; None if there is not one for all."""
    keys = replicas[0].keys if replicas else None
    return keys if all(replica.keys is keys for replica in replicas) else None
