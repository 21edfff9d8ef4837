"""The server's end of the frames: sends requests, and hands what each step gave to whoever asked.

Everything runs on the event loop's thread. A frame is one step's output for all requests: it is decoded once, and each
token costs one look-up and one call. Who listens is told through plain method calls and must neither wait nor raise for
long: an exception of a listener ends that listener's request and no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from chairlift.core.admission import Admission
from chairlift.core.tickets import Ticket
from chairlift.core.types import Finish, FinishReason, LimitChange, Request
from chairlift.metrics.serving import ServingMetrics
from chairlift.metrics.several import Counted, render_all
from chairlift.server.encoder_side import EncoderSide
from chairlift.server.errors import RETRY_AFTER_S, ApiError, bad_request, internal, never_fits, unavailable
from chairlift.server.explanations import Explanations
from chairlift.server.listener import InFlight, Listener
from chairlift.server.logs import ABOUT
from chairlift.server.ui.recent import Recent
from chairlift.wire import (
    MAX_FRAME_BYTES,
    Abort,
    Add,
    Close,
    Drain,
    Failed,
    FromWorker,
    Ready,
    Refused,
    SetLimits,
    Step,
    ToWorker,
    Watch,
    Watched,
    decode_from_worker,
    encode,
)

_log = logging.getLogger("chairlift.server")

_HEADER_BYTES = 4


class EngineClient(asyncio.Protocol):
    """Speaks frames with one worker. Its life: connected, `ready`, then `dead`, until it is connected to another one.

    Counters, ids and limits that were set outlive a worker; requests in its hands do not.
    """

    def __init__(
        self,
        make_metrics: Callable[[Ready], ServingMetrics],
        explanations: Explanations | None = None,
        admission: Admission | None = None,
        encoder: EncoderSide | None = None,
        recent: Recent | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[Ready] = loop.create_future()
        """Set by the first frame of the first worker, and renewed by that of each later one; cancelled if the first
        dies before."""
        self.dead: asyncio.Future[str] = loop.create_future()
        """Set with the reason when nothing more can come; a new one is there once another worker is ready."""
        self.up: asyncio.Future[None] = loop.create_future()
        """Set when the worker connected now is ready; cancelled if it is lost before."""
        self.lost: asyncio.Future[str] = loop.create_future()
        """Set with the reason when nothing more can come from the worker connected now."""
        self.gone: asyncio.Future[None] = loop.create_future()
        """Set when its connection is closed, and another may be made."""
        self.metrics: ServingMetrics | None = None
        self.last_heard: float | None = None
        """The worker's own time (the machine's monotonic clock) in its last frame."""
        self.longest_step_s = 0.0
        """Of the worker connected now."""
        self.retry_after_s: float = RETRY_AFTER_S
        """What those are told to wait who ask while there is no engine."""
        self.explanations = explanations
        """What became of the last requests, if anybody may ask."""
        self.admission = admission if admission is not None else Admission()
        """Who may enter; hears from here what becomes of them."""
        self.recent = recent
        """How it was lately, if anybody may look."""
        self._make_metrics = make_metrics
        self._encoder = encoder
        """The side of an encoder whose engine is beside another one's."""
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._live: dict[int, InFlight] = {}
        self._leaving: dict[int, tuple[Callable[[Finish | None], None], int]] = {}
        """Who wants to know how an aborted request ended, and how many of its choices have not."""
        self._watched: asyncio.Future[Watched] | None = None
        """What the worker was asked to tell those who look, until it has."""
        self._next_id = 0
        self._has_miscounted = False
        self._limits = LimitChange()
        """What was changed since the start, for workers to come."""

    # ------------------------------------------------------------ asking

    @property
    def num_live(self) -> int:
        """Requests whose end has not come and whose listeners have not left."""
        return len(self._live)

    def new_id(self) -> int:
        """An id for the next request, unique in this client's life."""
        self._next_id += 1
        return self._next_id

    @property
    def pass_admission(self) -> Admission:
        """Who may enter the engine of single passes."""
        return self.admission if self._encoder is None or not self._encoder.is_open else self._encoder.admission

    @property
    def pass_metrics(self) -> ServingMetrics | None:
        """What is counted of single passes."""
        return self.metrics if self._encoder is None or not self._encoder.is_open else self._encoder.metrics

    def render_metrics(self, *others: Counted) -> bytes:
        """The series of every engine of this worker, of `others` and of this process, in the Prometheus text format."""
        sides = [self.metrics, self._encoder.metrics if self._encoder is not None else None, *others]
        return render_all([metrics for metrics in sides if metrics is not None], with_process=True)

    def submit(
        self,
        request: Request,
        listener: Listener,
        ticket: Ticket | None = None,
        on_vector: Callable[[bytes], None] | None = None,
    ) -> None:
        """Hand a request over. Whatever happens to it, the listener hears, and its place is given back.

        A single pass gives its vector to `on_vector`, just before it ends.

        Raises:
            ApiError: 503, the worker is not there.
        """
        if self.metrics is None or not self._send(Add(request)):
            raise self.not_running()
        admission = self.admission if request.pooling is None else self.pass_admission
        self._live[request.id] = InFlight(request, listener, ticket, admission, on_vector)
        if request.pooling is not None:
            return
        max_tokens = request.params.max_tokens
        if max_tokens is None:
            max_tokens = self.ready.result().max_model_len - len(request.prompt)
        self.metrics.on_request(request.n, max_tokens)

    def abort(self, request_id: int, then: Callable[[Finish | None], None] | None = None) -> int:
        """Nobody listens any longer. Unknown and finished ids are ignored.

        `then` still hears the end of each choice, or None if the engine dies first. Gives how many ends will come.
        """
        one = self._live.pop(request_id, None)
        if one is None:
            return 0
        self._give_back(one)
        if not self._send(Abort(request_id)):
            return 0
        if then is not None:
            self._leaving[request_id] = then, one.num_open
        return one.num_open

    def set_limits(self, change: LimitChange) -> None:
        """Change the engine's limits from its next step on.

        Raises:
            ApiError: 503, the worker is not there.
        """
        if not self._send(SetLimits(change)):
            raise self.not_running()
        given = {name: value for name in change.__slots__ if (value := getattr(change, name)) is not None}
        self._limits = replace(self._limits, **given)

    def watch(self) -> asyncio.Future[Watched]:
        """Who runs and who waits, once the worker has told: one answer for all who ask meanwhile, so do not cancel it.

        It is cancelled if the worker dies first.

        Raises:
            ApiError: 503, the worker is not there.
        """
        if self._watched is None:
            if not self._send(Watch()):
                raise self.not_running()
            self._watched = asyncio.get_running_loop().create_future()
        return self._watched

    def close_queue(self) -> None:
        """Tell the worker that little or nothing more will come."""
        self._send(Close())

    def drain(self) -> None:
        """Ask the worker to exit once everything is finished."""
        self._send(Drain())

    def _send(self, message: ToWorker) -> bool:
        """Whether there is a worker to take the message."""
        if self._transport is None or self.dead.done():
            return False
        self._transport.write(encode(message))
        return True

    def not_running(self) -> ApiError:
        """What those are told who ask while there is no engine."""
        return unavailable("The engine is not running.", "engine_dead", self.retry_after_s)

    def give_up(self, reason: str) -> None:
        """Expect nothing more from this worker, and tell everybody who waits."""
        self._die(reason)

    def close(self) -> None:
        """Leave the worker, which ends it."""
        if self._transport is not None:
            self._transport.close()

    # ------------------------------------------------------------ hearing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._transport is not None:
            loop = asyncio.get_running_loop()
            self.up, self.lost, self.gone = loop.create_future(), loop.create_future(), loop.create_future()
            self._received = bytearray()
            self.last_heard, self.longest_step_s = None, 0.0
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def connection_lost(self, exc: Exception | None) -> None:
        self._die("The engine stopped.")
        if not self.gone.done():
            self.gone.set_result(None)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        start = 0
        view = memoryview(received)
        try:
            while len(received) - start >= _HEADER_BYTES:
                end = start + _HEADER_BYTES + int.from_bytes(received[start : start + _HEADER_BYTES], "little")
                if end - start - _HEADER_BYTES > MAX_FRAME_BYTES:
                    raise ValueError(f"a frame of {end - start - _HEADER_BYTES} bytes")
                if len(received) < end:
                    break
                self._take(decode_from_worker(view[start + _HEADER_BYTES : end]))
                start = end
        except Exception:
            _log.exception("the worker sent a frame that cannot be used")
            self._die("The engine's output cannot be used.")
            self.close()
        finally:
            view.release()
        del received[:start]

    def _take(self, message: FromWorker) -> None:
        if isinstance(message, Step):
            self._step(message)
        elif isinstance(message, Refused):
            self._refused(message)
        elif isinstance(message, Ready):
            if not self.up.done():
                self._open(message)
        elif isinstance(message, Watched):
            watched, self._watched = self._watched, None
            if watched is not None and not watched.done():
                watched.set_result(message)
        elif isinstance(message, Failed):
            self._die(message.message)

    def _open(self, ready: Ready) -> None:
        """The worker is ready: the first, or one that takes the place of another."""
        if self.metrics is None:
            self.metrics = self._make_metrics(ready)
        else:
            self.metrics.on_engine_back(ready.num_blocks, ready.block_size)
            loop = asyncio.get_running_loop()
            self.ready, self.dead = loop.create_future(), loop.create_future()
        self.admission.open(ready.max_num_seqs)
        if self._encoder is not None and ready.encoder is not None and ready.generates:
            self._encoder.open(ready.encoder)
        self.ready.set_result(ready)
        self.up.set_result(None)
        self.retry_after_s = ready.load_s
        if self._limits != LimitChange():
            self._send(SetLimits(self._limits))

    def _step(self, step: Step) -> None:
        now = self.last_heard = step.now
        metrics, admission = self.metrics, self.admission
        if step.engine and self._encoder is not None:
            metrics, admission = self._encoder.metrics, self._encoder.admission
        if metrics is None:
            return
        live = self._live
        for request_id in step.joined:
            if (one := live.get(request_id)) is not None and one.ticket is not None:
                admission.started(one.ticket, now)
        for request_id, vector in step.vectors:
            if (one := live.get(request_id)) is not None and one.on_vector is not None:
                metrics.on_prefilled(one.num_prompt_tokens)
                one.on_vector(vector)
        for request_id, index, logprob in step.logprobs:
            if (one := live.get(request_id)) is not None:
                one.choices[index].score(logprob)
        for request_id, index, logprobs in step.prompt_logprobs:
            if index == 0 and (one := live.get(request_id)) is not None:
                one.listener.score_prompt(logprobs)
        for finish in step.finishes:
            ended_by_token = finish.reason is FinishReason.STOP and not isinstance(finish.stop_reason, str)
            if ended_by_token and (one := live.get(finish.id)) is not None:
                one.choices[finish.choice].hold()

        last_times: dict[float, int] = {}
        num_others = 0
        for request_id, index, token in zip(step.ids, step.choices, step.tokens, strict=True):
            one = live.get(request_id)
            if one is None:
                num_others += 1
                continue
            choice = one.choices[index]
            last = choice.heard
            choice.heard = now
            if last is not None:
                last_times[last] = last_times.get(last, 0) + 1
            else:
                num_others += 1
                self._first_token(one, now, metrics)
            try:
                choice.push(token)
            except Exception:
                self._broken(request_id)
        self._count(metrics.on_tokens, now, last_times, num_others)
        if self.recent is not None and not step.engine:
            self._count(self.recent.on_step, now, len(step.tokens), last_times, step.stats)
        for finish in step.finishes:
            self._count(metrics.on_finish, finish)
            self._finished(finish)
        if self.explanations is not None:
            self.explanations.on_step(step.joined, step.finishes)
        stats = step.stats
        if stats.step_s > self.longest_step_s:
            self.longest_step_s = stats.step_s
        admission.observe(stats, now)
        self._count(metrics.on_stats, stats)
        if stats.num_step_tokens:
            self._count(metrics.on_step, stats.num_step_tokens, stats.step_s)

    def _count(self, count: Callable[..., None], *arguments: Any) -> None:
        """What is only counted must not cost anybody an answer."""
        try:
            count(*arguments)
        except Exception:
            if not self._has_miscounted:
                self._has_miscounted = True
                _log.exception("the metrics are wrong from here on; serving goes on")

    def _first_token(self, one: InFlight, now: float, metrics: ServingMetrics) -> None:
        self._count(metrics.on_first_token, now - one.arrival)
        if self.recent is not None:
            self._count(self.recent.on_first_token, now, now - one.arrival)
        if not one.prefilled:
            one.prefilled = True
            if one.ticket is not None:
                self.admission.started(one.ticket, now)
            self._count(metrics.on_prefilled, one.num_prompt_tokens)

    def _finished(self, finish: Finish) -> None:
        one = self._live.get(finish.id)
        if one is None:
            self._left(finish)
            return
        one.num_open -= 1
        one.max_output_tokens = max(one.max_output_tokens, finish.num_output_tokens)
        if one.num_open == 0:
            del self._live[finish.id]
            self._give_back(one)
            if one.on_vector is None and self.metrics is not None:
                self._count(self.metrics.on_complete, one.max_output_tokens)
        try:
            one.choices[finish.choice].finish(finish)
        except Exception:
            self._live.setdefault(finish.id, one)
            self._broken(finish.id)

    def _left(self, finish: Finish) -> None:
        """The end of a choice of an aborted request."""
        then, num_open = self._leaving.get(finish.id, (None, 0))
        if then is None:
            return
        if num_open > 1:
            self._leaving[finish.id] = then, num_open - 1
        else:
            del self._leaving[finish.id]
        then(finish)

    def _refused(self, refusal: Refused) -> None:
        if self.explanations is not None:
            self.explanations.on_refused(refusal.id)
        then, _ = self._leaving.pop(refusal.id, (None, 0))
        if then is not None:
            then(None)
        one = self._live.pop(refusal.id, None)
        if one is not None:
            self._give_back(one)
            if refusal.is_busy:
                one.listener.fail(unavailable(refusal.message, "engine_busy"))
                return
            make = never_fits if refusal.never else bad_request
            one.listener.fail(make(refusal.message, refusal.param))

    def _give_back(self, one: InFlight) -> None:
        """Its place in the queue or in a slot."""
        if one.ticket is not None:
            one.admission.ended(one.ticket, self.last_heard or 0.0)

    def _broken(self, request_id: int) -> None:
        """A listener raised: it loses its request, and nobody else does."""
        one = self._live.get(request_id)
        _log.exception("a request failed in the server", extra={ABOUT: "" if one is None else one.listener.request_id})
        self.abort(request_id)
        if one is not None:
            one.listener.fail(internal())

    def _die(self, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)
            self.up.cancel()
        if self.dead.done():
            return
        self.dead.set_result(reason)
        if not self.ready.done():
            self.ready.cancel()
        if self.metrics is not None:
            self.metrics.on_engine_dead()
        if self._encoder is not None:
            self._encoder.close()
        if self.explanations is not None:
            self.explanations.on_engine_dead()
        if self._watched is not None:
            self._watched.cancel()
            self._watched = None
        lost, self._live = self._live, {}
        leaving, self._leaving = self._leaving, {}
        for then, _ in leaving.values():
            then(None)
        for one in lost.values():
            self._give_back(one)
        for one in lost.values():
            text = "The engine stopped before the answer was finished."
            one.listener.fail(unavailable(text, "engine_dead", self.retry_after_s))
