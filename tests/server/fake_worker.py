"""A worker without a model: speaks the frames, its tokens are a pure function of the prompt and the choice.

It keeps the real one's promises (one `Finish` per choice, stop strings, blocks held while running, heartbeats) and can
be told by the prompt to break them. Runs on a thread, or as a process: `python fake_worker.py --fd N [--options JSON]`.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

import msgspec

from chairlift.core.look import Look, Phase, Seen
from chairlift.core.types import (
    BACKGROUND_PRIORITY,
    Decisions,
    EngineStats,
    Finish,
    FinishReason,
    LimitChange,
    Request,
    TokenLogprob,
)
from chairlift.wire import (
    Abort,
    Add,
    Drain,
    Failed,
    Ready,
    Refused,
    SetLimits,
    Step,
    Watch,
    Watched,
    decode_to_worker,
    encode,
)

ALPHABET = "etaoin shrdlu é ü 日本 🙂 "
END = 256
MAX_NUM_BATCHED_TOKENS = 2048
LIKELY = -0.5

REFUSE, FAIL, DIE, HANG, GARBAGE, REFUSE_LATE = "!refuse", "!fail", "!die", "!hang", "!garbage", "!too-large"
"""Words in a prompt that make the worker do that: on adding, or (fail, die, hang, garbage) at its third token."""


@dataclass(frozen=True)
class FakeOptions:
    step_s: float = 0.0
    load_s: float = 0.0
    fail_on_load: str = ""
    exit_on_load: int | None = None
    max_model_len: int = 4096
    max_num_seqs: int = 64
    num_blocks: int = 4096
    block_size: int = 16
    heartbeat_s: float = 0.2
    prefill_steps: int = 1
    enable_chunked_prefill: bool = True


def answer_tokens(prompt: list[int], choice: int, count: int) -> list[int]:
    """The bytes of an endless text."""
    data = b""
    serial = 0
    while len(data) < count:
        digest = sha256(f"{prompt}/{choice}/{serial}".encode()).digest()
        data += "".join(ALPHABET[byte % len(ALPHABET)] for byte in digest).encode()
        serial += 1
    return list(data[:count])


def natural_length(prompt: list[int], choice: int) -> int:
    """After how many tokens an answer ends by itself."""
    return 20 + sha256(f"{prompt}/{choice}".encode()).digest()[0]


@dataclass
class Row:
    request: Request
    choice: int
    tokens: list[int] = field(default_factory=list)
    plan: list[int] = field(default_factory=list)
    first_scheduled: float | None = None
    first_token: float | None = None
    prefilled: int = 0


class FakeWorker:
    def __init__(self, sock: socket.socket, options: FakeOptions | None = None) -> None:
        self.options = options or FakeOptions()
        self.sock = sock
        self.waiting: deque[Row] = deque()
        self.running: list[Row] = []
        self.adds: list[Request] = []
        self.aborts: list[int] = []
        self.changes: list[LimitChange] = []
        self.max_num_seqs = self.options.max_num_seqs
        self.max_num_batched_tokens = MAX_NUM_BATCHED_TOKENS
        self.decide: Callable[[Request], Decisions] = lambda _: Decisions()
        """What was decided about a request, made up."""
        self.says: Callable[[Request, int], str | None] = lambda request, choice: None
        """What a choice's answer is, instead of an endless text of its prompt's own; then it ends by itself."""
        self.likes: Callable[[int], float] = lambda choice: LIKELY
        """The score of each token of a choice."""
        self.ended: list[Finish] = []
        """Of requests that were aborted, for the next step."""
        self.scheduled: set[int] = set()
        self.draining = False
        self.hanging = False
        self._received = bytearray()

    @property
    def num_used_blocks(self) -> int:
        size = self.options.block_size
        return sum(-(-(len(row.request.prompt) + len(row.tokens)) // size) for row in self.running)

    def run(self) -> int:
        options = self.options
        if options.load_s:
            time.sleep(options.load_s)
        if options.exit_on_load is not None:
            return options.exit_on_load
        try:
            if options.fail_on_load:
                self.sock.sendall(encode(Failed(options.fail_on_load)))
                return 2
            self.sock.sendall(
                encode(
                    Ready(
                        model_name="fake",
                        max_model_len=options.max_model_len,
                        max_num_seqs=options.max_num_seqs,
                        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
                        num_blocks=options.num_blocks,
                        block_size=options.block_size,
                        load_s=options.load_s,
                        resident_bytes=1 << 20,
                        enable_chunked_prefill=options.enable_chunked_prefill,
                    )
                )
            )
            while True:
                if not self._read(wait=not (self.running or self.waiting)):
                    return 1
                if self.draining and not (self.running or self.waiting):
                    return 0
                if not self.hanging:
                    self._step()
                if options.step_s:
                    time.sleep(options.step_s)
        except OSError:
            return 1

    def _read(self, *, wait: bool) -> bool:
        self.sock.settimeout(self.options.heartbeat_s if wait else 0.0)
        while True:
            try:
                data = self.sock.recv(1 << 20)
            except (BlockingIOError, TimeoutError):
                return True
            if not data:
                return False
            self._received += data
            while len(self._received) >= 4:
                size = int.from_bytes(self._received[:4], "little")
                if len(self._received) < 4 + size:
                    break
                self._take(bytes(self._received[4 : 4 + size]))
                del self._received[: 4 + size]
            self.sock.settimeout(0.0)

    def _take(self, body: bytes) -> None:
        message = decode_to_worker(body)
        if isinstance(message, Drain):
            self.draining = True
        elif isinstance(message, Abort):
            self.aborts.append(message.id)
            gone = [row for row in (*self.waiting, *self.running) if row.request.id == message.id]
            self.ended += [self._ended(row, time.monotonic(), FinishReason.ABORT) for row in gone]
            self.waiting = deque(row for row in self.waiting if row.request.id != message.id)
            self.running = [row for row in self.running if row.request.id != message.id]
        elif isinstance(message, Watch):
            self.sock.settimeout(None)
            self.sock.sendall(encode(Watched([self._look()], time.monotonic())))
        elif isinstance(message, SetLimits):
            change = message.change
            self.changes.append(change)
            self.max_num_seqs = change.max_num_seqs or self.max_num_seqs
            self.max_num_batched_tokens = change.max_num_batched_tokens or self.max_num_batched_tokens
        elif isinstance(message, Add):
            request = message.request
            self.adds.append(request)
            text = spelled(request)
            if REFUSE in text or REFUSE_LATE in text:
                self.sock.settimeout(None)
                self.sock.sendall(encode(Refused(request.id, "refused as told", "prompt", REFUSE_LATE in text)))
                return
            self.waiting.extend(Row(request, choice) for choice in range(request.n))

    def _look(self) -> Look:
        rows = [*enumerate(self.running), *((-1, row) for row in self.waiting)]
        seen = [
            Seen(
                id=row.request.id,
                choice=row.choice,
                slot=slot,
                phase=Phase.WAITING if slot < 0 else Phase.DECODE if row.tokens else Phase.PREFILL,
                num_prompt_tokens=len(row.request.prompt),
                num_output_tokens=len(row.tokens),
                max_output_tokens=self._length(row),
                num_computed_tokens=len(row.request.prompt) + len(row.tokens) - 1 if row.tokens else 0,
                num_cached_tokens=0,
                num_blocks=1,
                num_preemptions=0,
                arrival=row.request.arrival,
                first_scheduled=row.first_scheduled,
            )
            for slot, row in rows
        ]
        return Look([one for one in seen if one.slot >= 0], [one for one in seen if one.slot < 0])

    def _step(self) -> None:
        now = time.monotonic()
        joined = []
        while self.waiting and len(self.running) < self.max_num_seqs:
            row = self.waiting.popleft()
            row.first_scheduled = now
            row.plan = answer_tokens(list(row.request.prompt), row.choice, self._length(row))
            told = self.says(row.request, row.choice)
            if told is not None:
                row.plan = [*told.encode(), END, *row.plan]
            elif not row.request.params.ignore_eos:
                row.plan = [*row.plan[: natural_length(list(row.request.prompt), row.choice)], END]
            if row.request.id not in self.scheduled:
                joined.append(row.request.id)
            self.scheduled.add(row.request.id)
            self.running.append(row)
        step = Step([], [], [], [], [], joined, self.ended, self._stats(0), now)
        self.ended = []
        self._end_missed(step, now)
        for row in list(self.running):
            row.prefilled += 1
            if row.prefilled >= self.options.prefill_steps:
                self._advance(row, step, now)
        self.sock.settimeout(None)
        self.sock.sendall(encode(msgspec.structs.replace(step, stats=self._stats(len(step.tokens)))))

    def _length(self, row: Row) -> int:
        limit = self.options.max_model_len - len(row.request.prompt)
        wanted = row.request.params.max_tokens
        return limit if wanted is None else min(wanted, limit)

    def _advance(self, row: Row, step: Step, now: float) -> None:
        request, params = row.request, row.request.params
        if len(row.tokens) == 2:
            self._misbehave(row, step, now)
            if row not in self.running:
                return
        if row.first_token is None:
            row.first_token = now
            if params.prompt_logprobs is not None and row.choice == 0:
                scores = [scored(token, params.prompt_logprobs) for token in list(request.prompt)[1:]]
                step.prompt_logprobs.append((request.id, 0, scores))
        token = row.plan[len(row.tokens)]
        row.tokens.append(token)
        step.ids.append(request.id)
        step.choices.append(row.choice)
        step.tokens.append(token)
        if params.logprobs is not None:
            step.logprobs.append((request.id, row.choice, scored(token, params.logprobs, self.likes(row.choice))))
        self._end_if_due(row, token, step, now)

    def _end_if_due(self, row: Row, token: int, step: Step, now: float) -> None:
        params = row.request.params
        stop = None
        if params.stop:
            text = bytes(t for t in row.tokens if t < END).decode("utf-8", "ignore")
            stop = next((stop for stop in params.stop if stop in text), None)
        if stop is not None:
            self._finish(row, step, now, FinishReason.STOP, stop)
        elif token == END and not params.ignore_eos:
            self._finish(row, step, now, FinishReason.STOP, None)
        elif token in params.stop_token_ids:
            self._finish(row, step, now, FinishReason.STOP, token)
        elif len(row.tokens) == self._length(row):
            self._finish(row, step, now, FinishReason.LENGTH, None)

    def _end_missed(self, step: Step, now: float) -> None:
        """Rows whose deadline has come, waiting or running."""
        for rows in (self.waiting, self.running):
            for row in list(rows):
                request, error = row.request, None
                if request.ttft_deadline is not None and row.first_token is None and now >= request.ttft_deadline:
                    error = f"ttft deadline: no first token within {request.ttft_deadline - request.arrival:.3f} s"
                elif request.e2e_deadline is not None and now >= request.e2e_deadline:
                    error = f"e2e deadline: not finished within {request.e2e_deadline - request.arrival:.3f} s"
                if error is not None:
                    rows.remove(row)
                    step.finishes.append(self._ended(row, now, FinishReason.DEADLINE, error=error))

    def _misbehave(self, row: Row, step: Step, now: float) -> None:
        text = spelled(row.request)
        if FAIL in text:
            self._finish(row, step, now, FinishReason.ERROR, None, "logits at 0xdeadbeef in /root/model are not finite")
        elif DIE in text:
            self.sock.close()
            raise OSError("told to die")
        elif HANG in text:
            self.hanging = True
        elif GARBAGE in text:
            self.sock.settimeout(None)
            self.sock.sendall(b"\x05\0\0\0\xc1junk")

    def _finish(
        self, row: Row, step: Step, now: float, reason: FinishReason, stop: int | str | None, error: str | None = None
    ) -> None:
        self.running.remove(row)
        step.finishes.append(self._ended(row, now, reason, stop, error))

    def _ended(
        self, row: Row, now: float, reason: FinishReason, stop: int | str | None = None, error: str | None = None
    ) -> Finish:
        decisions = self.decide(row.request)
        return Finish(
            id=row.request.id,
            choice=row.choice,
            reason=reason,
            stop_reason=stop,
            error=error,
            num_prompt_tokens=len(row.request.prompt),
            num_output_tokens=len(row.tokens),
            num_cached_tokens=4,
            num_preemptions=len(decisions.preemptions),
            arrival=row.request.arrival,
            first_scheduled=row.first_scheduled,
            first_token=row.first_token,
            finished=now,
            decisions=decisions,
        )

    def _stats(self, num_tokens: int) -> EngineStats:
        return EngineStats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            num_used_blocks=self.num_used_blocks,
            num_cached_blocks=0,
            num_preemptions=0,
            prefix_queries=len(self.adds) * 10,
            prefix_hits=len(self.adds) * 4,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            num_step_tokens=num_tokens,
            step_s=max(self.options.step_s, 1e-4) if num_tokens else 0.0,
            num_background_running=sum(row.request.priority >= BACKGROUND_PRIORITY for row in self.running),
            num_background_waiting=sum(row.request.priority >= BACKGROUND_PRIORITY for row in self.waiting),
        )


def spelled(request: Request) -> str:
    return bytes(token for token in request.prompt if token < END).decode("utf-8", "ignore")


def scored(token: int, num_top: int, logprob: float = LIKELY) -> TokenLogprob:
    """A made-up score; the least likely alternative is impossible."""
    others = [(token, logprob), (65, -1.5), (66, float("-inf")), (67, -3.0)]
    return TokenLogprob(token, logprob, 1, tuple(others[:num_top]))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--options", default="{}")
    arguments = parser.parse_args()
    options = msgspec.json.decode(arguments.options, type=FakeOptions)
    with socket.socket(fileno=arguments.fd) as sock:
        return FakeWorker(sock, options).run()


if __name__ == "__main__":
    sys.exit(main())
