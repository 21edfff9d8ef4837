"""The child that tries grammars, seen from its parent."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys

import msgspec

from chairlift.core.errors import EngineDead
from chairlift.grammars.child import Verdict, read_frame, write_frame
from chairlift.grammars.compiling import Vocabulary

START_TIMEOUT_S = 30.0
TRIAL_TIMEOUT_S = 20.0
"""By the clock, for what may take two seconds of a processor that others have the better claim to."""


class Checker:
    """One child; used by one thread at a time. It is started when it is first needed, and again if it was lost."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._child: subprocess.Popen[bytes] | None = None

    def check(self, grammar: str) -> Verdict:
        """Whether a grammar compiles within its bounds.

        Raises:
            EngineDead: the child cannot be started.
        """
        if self._child is None:
            self._start()
        with contextlib.suppress(OSError):
            self._write(grammar.encode())
            answer = self._answer(TRIAL_TIMEOUT_S)
            if answer is not None:
                return msgspec.msgpack.decode(answer, type=Verdict)
        self.close()
        return Verdict("it could not be compiled in time")

    def close(self) -> None:
        """End the child and whatever it is at; from any thread."""
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, 9)
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()

    def _start(self) -> None:
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "chairlift.grammars.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                process_group=0,
            )
            self._write(msgspec.msgpack.encode(self._vocabulary))
            started = self._answer(START_TIMEOUT_S) is not None
        except OSError:
            started = False
        if not started:
            self.close()
            raise EngineDead("grammars cannot be compiled now: their process does not start")

    def _write(self, body: bytes) -> None:
        if self._child is None or self._child.stdin is None:
            raise BrokenPipeError
        write_frame(self._child.stdin.fileno(), body)

    def _answer(self, timeout_s: float) -> bytes | None:
        """The child's next frame; None if it ended or took too long."""
        if self._child is None or self._child.stdout is None:
            return None
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                return None
        return read_frame(self._child.stdout.fileno())
