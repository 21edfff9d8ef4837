"""Load on an engine in this process, open loop: each request goes to its thread when due, and its tokens are timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from chairlift.bench.exchange import Exchange
from chairlift.bench.load import Load
from chairlift.core.policy import Policy
from chairlift.core.types import Finish, Request, StepOutput, StepPlan

INTERVAL_S = 0.5


class Listener(Protocol):
    """Hears what an engine does, on the engine's thread."""

    def on_step(self, plan: StepPlan, output: StepOutput, begun: float, finished: float) -> None: ...

    def on_tokens(self, ids: Sequence[int], finishes: Sequence[Finish], now: float) -> None:
        """One token for each of `ids` reaches its caller now."""
        ...


class Loop(Protocol):
    """An engine that serves on a thread of its own."""

    def add(self, request: Request) -> None: ...

    def close(self) -> None:
        """Nothing more comes; what is there is served."""
        ...

    def stop(self) -> None:
        """Nobody wants what is left; returns when the engine is idle."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Whether everything has been served after at most so long.

        Raises:
            ChairliftError: it cannot be: a request was refused, or the engine broke.
        """
        ...


StartLoop = Callable[[Policy, Listener], Loop]
"""Puts a fresh engine with that policy around the model, on the same clock as the bench's."""
Show = Callable[[Load, int], None]
"""Says how a run is going: the load, and the tokens that have come."""


class Recording:
    """What came of a run, from the engine's thread."""

    def __init__(self, requests: Sequence[Request], load: Load) -> None:
        self.load = load
        self.num_tokens = 0
        self.num_steps = 0
        self.num_useful_rows = 0
        self.prompt_step_s: list[float] = []
        self.decode_step_s: list[float] = []
        self._exchanges = {
            request.id: Exchange(request.arrival, num_input_tokens=len(request.prompt)) for request in requests
        }
        load.exchanges = list(self._exchanges.values())

    def on_step(self, plan: StepPlan, output: StepOutput, begun: float, finished: float) -> None:
        self.num_steps += 1
        self.num_useful_rows += len(plan.decodes) + len(plan.chunks)
        (self.prompt_step_s if plan.chunks else self.decode_step_s).append(finished - begun)

    def on_tokens(self, ids: Sequence[int], finishes: Sequence[Finish], now: float) -> None:
        for request_id in ids:
            self._exchanges[request_id].deliveries.append(now)
        self.num_tokens += len(ids)
        for finish in finishes:
            exchange = self._exchanges[finish.id]
            exchange.finished = now
            exchange.num_output_tokens = finish.num_output_tokens
            exchange.error = finish.error
            self.load.num_done += 1
            self.load.num_failed += finish.error is not None


def serve(
    start: StartLoop,
    policy: Policy,
    requests: Sequence[Request],
    arrivals: Sequence[float],
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    show: Show = lambda load, num_tokens: None,
) -> Recording:
    """Serve each request at its arrival, in seconds from now, to the end.

    Latencies count from when a request was due, whether or not it was handed over in time.

    Raises:
        ChairliftError: a request was refused, or the engine broke.
    """
    begun = clock()
    due = [replace(request, arrival=begun + arrival) for request, arrival in zip(requests, arrivals, strict=True)]
    load = Load(len(due), begun)
    recording = Recording(due, load)
    loop = start(policy, recording)
    try:
        for request in due:
            while (wait := request.arrival - clock()) > 0.0:
                sleep(min(wait, INTERVAL_S))
                show(load, recording.num_tokens)
            loop.add(request)
            load.num_started += 1
        loop.close()
        while not loop.wait(INTERVAL_S):
            show(load, recording.num_tokens)
    except BaseException:
        loop.stop()
        raise
    load.duration_s = max(exchange.finished for exchange in load.exchanges) - begun
    return recording
