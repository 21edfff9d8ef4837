"""The child that tries grammars: `python -m chairlift.grammars.child`, spoken to over its standard input and output.

It reads a vocabulary, then one grammar after the other, and tries each in a fork of its own with bounds on time, memory
and depth. So a grammar that breaks the compiler, or never comes to an end, costs one process that nobody misses, and
what it took is given back.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
from llguidance import LLTokenizer

from chairlift.grammars.compiling import InvalidGrammar, Vocabulary, compiled, tokenizer_of, walk

MAX_CPU_S = 2.0
MAX_MEMORY_BYTES = 256 << 20
"""Beyond what the child has already."""
MAX_STACK_BYTES = 2 << 20
"""A quarter of what the process has that compiles the grammar for use: what is not too deep here is not there."""
NICENESS = 19
HEADER_BYTES = 4
ALL, DATA = 0, 5
"""Fields of /proc/self/statm: all that is mapped, and what of it is for data."""


class Verdict(msgspec.Struct, frozen=True):
    """What trying a grammar gave: why it cannot be used, or None and what it took."""

    error: str | None
    num_bytes: int = 0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one trial."""

    cpu_s: float = MAX_CPU_S
    memory_bytes: int = MAX_MEMORY_BYTES


def main() -> int:
    """Serve until standard input ends."""
    os.nice(NICENESS)
    vocabulary = read_frame(0)
    if vocabulary is None:
        return 0
    tokenizer = tokenizer_of(msgspec.msgpack.decode(vocabulary, type=Vocabulary), None)
    del vocabulary
    write_frame(1, b"")
    while (grammar := read_frame(0)) is not None:
        verdict = tried_apart(tokenizer, grammar.decode(), Bounds())
        if verdict is None:
            return 0
        write_frame(1, msgspec.msgpack.encode(verdict))
    return 0


def tried_apart(tokenizer: LLTokenizer, grammar: str, bounds: Bounds, parent: int = 0) -> Verdict | None:
    """Try a grammar in a fork; None if `parent`, a descriptor, has ended meanwhile."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        _try(tokenizer, grammar, bounds, theirs)
    os.close(theirs)
    try:
        ready, _, _ = select.select([ours, parent], [], [])
        answer = read_frame(ours) if ours in ready else b""
        if answer == b"":
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(ours)
        _, status = os.waitpid(pid, 0)
    if answer:
        return msgspec.msgpack.decode(answer, type=Verdict)
    if answer == b"":
        return None
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
        return Verdict(f"it takes more than {bounds.cpu_s:g} seconds to compile")
    return Verdict("it needs too much memory, or is nested too deeply")


def _try(tokenizer: LLTokenizer, grammar: str, bounds: Bounds, out: int) -> None:
    """The fork's whole life."""
    status = 1
    with contextlib.suppress(BaseException):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what the compiler says when it panics is nobody's business
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_STACK, (MAX_STACK_BYTES, MAX_STACK_BYTES))
        most = _memory_bytes(ALL) + bounds.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        signal.setitimer(signal.ITIMER_PROF, bounds.cpu_s)
        before, begun = _memory_bytes(DATA), time.process_time()
        try:
            matcher = compiled(tokenizer, grammar)
            num_bytes = _memory_bytes(DATA) - before
            cpu_s = time.process_time() - begun
            walk(matcher, len(grammar))
            verdict = Verdict(None, max(num_bytes, 0), cpu_s)
        except InvalidGrammar as error:
            verdict = Verdict(str(error))
        write_frame(out, msgspec.msgpack.encode(verdict))
        status = 0
    os._exit(status)


def _memory_bytes(field: int) -> int:
    """Of this process."""
    return int(Path("/proc/self/statm").read_text().split()[field]) * resource.getpagesize()


def read_frame(fd: int) -> bytes | None:
    """The next frame, None where there is none."""
    header = _read(fd, HEADER_BYTES)
    return None if header is None else _read(fd, int.from_bytes(header, "little"))


def write_frame(fd: int, body: bytes) -> None:
    """Raises OSError if nobody reads."""
    frame = memoryview(len(body).to_bytes(HEADER_BYTES, "little") + body)
    while frame:
        frame = frame[os.write(fd, frame) :]


def _read(fd: int, size: int) -> bytes | None:
    pieces = bytearray()
    while len(pieces) < size:
        piece = os.read(fd, size - len(pieces))
        if not piece:
            return None
        pieces += piece
    return bytes(pieces)


if __name__ == "__main__":
    sys.exit(main())
