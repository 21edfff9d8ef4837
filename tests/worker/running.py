"""An engine on a fake device, and its loop on a thread, for the tests of this folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from chairlift.core.engine import Engine
from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, Finish, Limits, Request, SamplingParams
from chairlift.wire import Abort, Add, Drain, Refused, Step
from chairlift.worker.loop import EngineLoop, Gate
from fakes import VOCAB_SIZE, FakeExecutor, prompt

TIMEOUT_S = 20.0


def fake_engine(
    executor: FakeExecutor,
    *,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    max_model_len: int = 200,
    policy: Policy | None = None,
) -> Engine:
    limits = Limits(max_num_seqs, max_num_batched_tokens, max_model_len)
    return Engine(Scheduler(limits, executor.cache, vocab_size=VOCAB_SIZE, policy=policy), executor)


def request(request_id: int, *, length: int = 10, max_tokens: int = 5, n: int = 1) -> Request:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return Request(request_id, prompt(length, request_id + 1), params, n=n)


@dataclass
class Emitted:
    """What a loop emitted, with a way to wait for it."""

    messages: list[Refused | Step] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __call__(self, message: Refused | Step) -> None:
        with self.changed:
            self.messages.append(message)
            self.changed.notify_all()

    def wait_for(self, holds: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(holds, TIMEOUT_S), "the loop did not emit what was expected"

    @property
    def steps(self) -> list[Step]:
        return [message for message in self.messages if isinstance(message, Step)]

    @property
    def refusals(self) -> list[Refused]:
        return [message for message in self.messages if isinstance(message, Refused)]

    @property
    def finishes(self) -> dict[tuple[int, int], Finish]:
        finishes = [finish for step in self.steps for finish in step.finishes]
        by_key = {(finish.id, finish.choice): finish for finish in finishes}
        assert len(by_key) == len(finishes), "a sequence ended twice"
        return by_key

    @property
    def vectors(self) -> dict[int, bytes]:
        return {id: vector for step in self.steps for id, vector in step.vectors}

    def tokens(self, request_id: int, choice: int = 0) -> list[int]:
        return [
            token
            for step in self.steps
            for i, c, token in zip(step.ids, step.choices, step.tokens, strict=True)
            if (i, c) == (request_id, choice)
        ]


class Running:
    """A loop on its own thread; leaving the context drains it."""

    def __init__(
        self,
        executor: FakeExecutor | None = None,
        *,
        heartbeat_s: float = 60.0,
        policy: Policy | None = None,
        gate: Gate | None = None,
        encoder: Engine | None = None,
        **limits: int,
    ) -> None:
        self.executor = executor or FakeExecutor(CacheShape(64, 4))
        self.engine = fake_engine(self.executor, policy=policy, **limits)
        self.emitted = Emitted()
        self.encoder = encoder
        self.loop = EngineLoop(
            self.engine, time.monotonic, self.emitted, heartbeat_s=heartbeat_s, gate=gate, encoder=encoder
        )
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.loop.run()
        except Exception as error:
            self.error = error

    def __enter__(self) -> Running:
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.drain()
        else:
            self.loop.stop()

    def add(self, *requests: Request) -> None:
        for each in requests:
            self.loop.submit(Add(each))

    def abort(self, request_id: int) -> None:
        self.loop.submit(Abort(request_id))

    def wait_finished(self, *request_ids: int) -> None:
        self.emitted.wait_for(lambda: set(request_ids) <= {key[0] for key in self.emitted.finishes})

    def drain(self) -> None:
        """Let the loop end, and check what must hold whenever nothing is in flight."""
        self.loop.submit(Drain())
        self.thread.join(TIMEOUT_S)
        assert not self.thread.is_alive(), "the loop did not end"
        if self.error is not None:
            raise self.error
        assert self.executor.violations == []
        assert self.engine.stats().num_used_blocks == 0
        assert self.engine.stats().num_running == 0
        assert not self.engine.has_work
        assert self.encoder is None or not self.encoder.has_work
