"""Recording while serving: the engine's thread hands over what happened, another thread makes lines of it.

    engine's thread    on_begin, on_finish ...  ->  queue  ->  the writer's thread: encode, hash, write

The engine never waits for the disk and never fails because of it. If the disk is full, or slower than the engine, there
is a gap: the next segment says so and opens with a snapshot, as every segment does, so that it replays by itself.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from chairlift.core.prefix import root_key
from chairlift.core.scheduler import Scheduler
from chairlift.core.snapshot import capture, forget_unreachable
from chairlift.core.types import LimitChange, Request, StepOutput, StepPlan, StepResult
from chairlift.journal import records
from chairlift.journal.disguise import Disguise
from chairlift.journal.options import JournalOptions
from chairlift.journal.segments import SegmentFiles
from chairlift.journal.transcript import Begun, Broke, Done, Item, Snapshot, Transcript, joins_of, weight

POLL_S = 0.2
"""How long a line may wait for the disk. Nobody is woken for it: that would cost the engine more than the line."""
RETRY_S = 10.0
"""How long a disk that could not be written is left alone."""
CAPACITY = 1 << 18
"""Most that waits to be written, in weights of items: some minutes of a disk that does not answer."""
CLOSE_TIMEOUT_S = 5.0


class Journal:
    """Records one scheduler, from `start` to `close`: a `Recorder` of the engine, which calls it on its own thread.

    `say` is told once when something cannot be recorded, `clock` gives seconds since 1970.
    """

    def __init__(
        self,
        options: JournalOptions,
        files: SegmentFiles,
        *,
        say: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.time,
        poll_s: float = POLL_S,
        retry_s: float = RETRY_S,
        capacity: int = CAPACITY,
    ) -> None:
        self._files = files
        self._options = options
        self._say = say if say is not None else _say
        self._clock = clock
        self._poll_s = poll_s
        self._retry_s = retry_s
        self._capacity = capacity
        self._transcript = Transcript(Disguise(secrets.token_bytes(32)) if options.digest else None)
        self._queue: deque[Item] = deque()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

        # The engine's thread's.
        self._scheduler: Scheduler | None = None
        self._num_put = 0
        """Weight of all items so far."""
        self._roots: set[bytes] = set()
        """Roots of prefix keys by which the index may be entered."""
        self._lost = False
        """Whether items are being dropped because the writer cannot follow."""
        self._broken = False

        # Set by the writer's thread when it needs a snapshot, cleared by the engine's.
        self._wanted = False

        # The writer's thread's.
        self._num_taken = 0
        """Weight of all items taken out so far."""
        self._open = False
        """Whether a segment is open; what comes otherwise is dropped until the next snapshot."""
        self._gap = False
        self._retry_at: float | None = None
        self._asked = False
        """Whether a snapshot was asked for that has not come yet."""
        self._told = False

    def attach(self, scheduler: Scheduler) -> None:
        """Record from here on; somebody must call `write`. The scheduler has no step in flight."""
        self._scheduler = scheduler
        self._take_snapshot(gap=False)

    def start(self, scheduler: Scheduler) -> None:
        """Record from here on, written by a thread of its own. The scheduler has no step in flight."""
        self.attach(scheduler)
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what is left. Gives up on a disk that does not answer."""
        self._closing.set()
        if self._thread is None:
            self._finish()
        else:
            self._thread.join(CLOSE_TIMEOUT_S)

    # ------------------------------------------------------------ the engine's thread

    def on_add(self, request: Request) -> None:
        if self._options.digest:
            self._roots.add(root_key(request.salt))
        self._put(request)

    def on_abort(self, request_id: int, now: float) -> None:
        self._put(records.Abort(request_id, now))

    def on_limits(self, change: LimitChange) -> None:
        self._put(records.Limits(change))

    def on_close(self) -> None:
        self._put(records.Close())

    def on_begin(self, plan: StepPlan | None, now: float) -> None:
        self._put(Begun(now, plan, joins_of(plan) if plan is not None else ()))

    def on_finish(
        self, plan: StepPlan, result: StepResult | None, failure: str | None, output: StepOutput, now: float
    ) -> None:
        self._put(Done(now, plan, result, failure, output.finishes))
        if self._wanted or self._lost:
            self._renew()

    def on_broken(self, during: Literal["begin", "finish"], result: StepResult | None, error: str, now: float) -> None:
        self._put(Broke(now, during, result, error))

    def _put(self, item: Item) -> None:
        if self._lost:
            return
        if self._num_waiting < self._capacity:
            self._num_put += weight(item)
            self._queue.append(item)
        else:
            self._lost = True

    @property
    def _num_waiting(self) -> int:
        return self._num_put - self._num_taken

    def _renew(self) -> None:
        """No step is in flight: a new segment may begin, unless the writer still has much to do."""
        if self._broken or (self._lost and self._num_waiting > self._capacity // 2):
            return
        gap, self._lost, self._wanted = self._lost, False, False
        try:
            self._take_snapshot(gap)
        except Exception:  # a defect of ours must not end what is being served
            traceback.print_exc()
            self._lost = self._broken = True
            self._say("the journal ends here: no snapshot can be taken; serving goes on")

    def _take_snapshot(self, gap: bool) -> None:
        scheduler = self._scheduler
        if scheduler is None:
            return
        if self._options.digest:
            self._roots = forget_unreachable(scheduler, self._roots)
        snapshot = Snapshot(capture(scheduler), gap)
        self._num_put += weight(snapshot)
        self._queue.append(snapshot)

    # ------------------------------------------------------------ the writer's thread

    def _run(self) -> None:
        while not self._closing.wait(self._poll_s):
            self.write()
        self._finish()

    def _finish(self) -> None:
        self.write()
        self._files.close()

    def write(self) -> None:
        """Write everything that waits. Whatever goes wrong is a gap, and nothing else."""
        try:
            self._drain()
        except OSError as error:
            self._give_up(error.strerror or str(error))
        except Exception as error:
            traceback.print_exc()
            self._give_up(f"{type(error).__name__}: {error}")
        self._ask()

    def _drain(self) -> None:
        lines: list[bytes] = []
        queue = self._queue
        while queue:
            item = queue.popleft()
            self._num_taken += weight(item)
            if isinstance(item, Snapshot):
                self._flush(lines)
                self._begin_segment(item)
            elif self._open:
                lines.append(self._transcript.line(item))
        self._flush(lines)

    def _flush(self, lines: list[bytes]) -> None:
        if lines:
            data = b"".join(lines)
            lines.clear()
            self._files.write(data)

    def _begin_segment(self, snapshot: Snapshot) -> None:
        self._asked = self._open = False
        if self._gap:
            snapshot.gap = True
        self._files.begin(self._transcript.open(snapshot, self._clock()))
        if snapshot.gap and not self._gap:
            self._tell("it is written too slowly")
        self._open, self._gap, self._retry_at = True, False, None

    def _give_up(self, reason: str) -> None:
        """Drop what comes until the next snapshot."""
        self._open, self._gap, self._asked = False, True, False
        self._files.close()
        self._retry_at = self._clock() + self._retry_s
        self._tell(reason)

    def _ask(self) -> None:
        """Have a snapshot taken, if the segment is full or it is time to try again."""
        if self._asked:
            return
        if self._open:
            due = self._files.size >= max(self._options.max_bytes, 2 * self._files.snapshot_size)
        else:
            due = self._retry_at is not None and self._clock() >= self._retry_at
        if due:
            self._asked = self._wanted = True

    def _tell(self, reason: str) -> None:
        if not self._told:
            self._told = True
            self._say(f"the journal has a gap: {reason}; serving goes on")


def _say(message: str) -> None:
    print(f"chairlift: {message}", file=sys.stderr, flush=True)


def open_journal(path: Path, options: JournalOptions) -> Journal:
    """A journal at `path`, still to be started.

    Raises:
        InvalidOption: the path cannot be used.
    """
    return Journal(options, SegmentFiles(path, options.max_segments))
