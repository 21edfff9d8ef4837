"""The worker process: load a model, say so, serve frames until drained or until the server is gone.

Three threads: the main thread loads and then runs the engine's loop, a reader turns frames into commands, a writer
sends what the socket did not take at once. The reader starts before loading, so that a server that dies takes the
worker with it at any time, even while the main thread is deep inside the device's library.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import gc
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from chairlift.core.engine import Engine
from chairlift.core.errors import ChairliftError, EngineDead
from chairlift.core.policy import Policy
from chairlift.core.types import CacheShape, Limits
from chairlift.wire import Failed, Ready, Refused
from chairlift.worker.build import build
from chairlift.worker.encoder import BuiltEncoder, load_encoder
from chairlift.worker.inlet import read_commands
from chairlift.worker.loading import LoadingLines
from chairlift.worker.loop import EngineLoop, Gate, Inbox
from chairlift.worker.options import decode_options
from chairlift.worker.outbox import Outbox

EXIT_OK = 0
EXIT_DEAD = 1
EXIT_CANNOT_START = 2

SWITCH_INTERVAL_S = 5e-4
"""How long a thread that comes back from the device may wait for another one's Python code; the default is 5 ms."""

_PR_SET_PDEATHSIG = 1

FLUSH_TIMEOUT_S = 2.0
MAX_REPORTED_FRAMES = 10
"""Bad frames named on stderr; what goes on sending them must not fill a log."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry of `python -m chairlift.worker`; the exit status is 0 only after a fulfilled `Drain`."""
    parser = argparse.ArgumentParser(prog="chairlift.worker", description="The engine process of chairlift serve.")
    parser.add_argument("--fd", type=int, required=True, help="inherited stream socket that carries the frames")
    parser.add_argument("--options", required=True, help="engine options as JSON")
    arguments = parser.parse_args(argv)

    prepare_process()
    with socket.socket(fileno=arguments.fd) as sock:
        return serve(sock, lambda: _load(arguments.options))


def prepare_process() -> None:
    """What holds for the process as a whole: signals, standard output, how threads take turns."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C may reach the whole group; the server decides what it means
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    os.dup2(2, 1)  # a library that prints must not write into the server's output
    _die_with_parent()


def _die_with_parent() -> None:
    """Let the system kill this process when the server dies: one that hangs or is stopped reads nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What serving needs of a model."""

    name: str
    engine: Engine
    limits: Limits
    cache_shape: CacheShape
    policy: Policy = field(default_factory=Policy)
    close: Callable[[], None] = lambda: None
    """Called when the engine was driven for the last time."""
    gate: Gate | None = None
    encoder: BuiltEncoder | None = None
    """Reads single passes, on the same device or, if nothing generates, alone; its engine is then `engine`."""
    generates: bool = True


def _load(encoded_options: str) -> Loaded:
    options = decode_options(encoded_options)
    encoder, generates = load_encoder(options)
    if encoder is not None and not generates:
        return Loaded(
            encoder.encoder.name,
            encoder.engine,
            encoder.limits,
            encoder.cache_shape,
            options.encoder_policy(),
            encoder.close,
            encoder=encoder,
            generates=False,
        )
    built = build(options, LoadingLines)

    def close() -> None:
        built.close()
        if encoder is not None:
            encoder.close()

    return Loaded(
        built.model.name,
        built.engine,
        built.limits,
        built.cache_shape,
        options.policy(),
        close,
        built.grammars,
        encoder,
    )


def serve(sock: socket.socket, load: Callable[[], Loaded]) -> int:
    """Load, serve the frames on `sock`, and return the exit status. Ends the process if the other side closes."""
    started = time.monotonic()
    outbox = Outbox(sock)
    inbox: Inbox = SimpleQueue()
    threading.Thread(target=_read, args=(sock, inbox, outbox), name="reader", daemon=True).start()
    threading.Thread(target=outbox.run, name="writer", daemon=True).start()
    try:
        loaded = load()
    except Exception as error:
        return _fail(outbox, error, EXIT_CANNOT_START)
    try:
        outbox.put(_ready(loaded, time.monotonic() - started))
        gc.collect()
        gc.freeze()  # what loading left behind lives as long as the process: no collection need look at it again
        encoder = loaded.encoder.engine if loaded.encoder is not None and loaded.generates else None
        put = outbox.put
        loop = EngineLoop(loaded.engine, time.monotonic, put, inbox=inbox, gate=loaded.gate, encoder=encoder, tell=put)
        loop.run()
    except Exception as error:
        return _fail(outbox, error, EXIT_DEAD)
    finally:
        loaded.close()
    return EXIT_OK if outbox.close(FLUSH_TIMEOUT_S) else EXIT_DEAD


def _fail(outbox: Outbox, error: Exception, status: int) -> int:
    """Tell the server why, if it still listens; a fault of ours also leaves its traceback on stderr."""
    if isinstance(error, ChairliftError):
        message = str(error)
    elif isinstance(error, MemoryError):
        message = f"not enough memory: {error}"
    else:
        message = f"{type(error).__name__}: {error}"
        traceback.print_exception(error)
    with contextlib.suppress(EngineDead):
        outbox.put(Failed(message))
    outbox.close(FLUSH_TIMEOUT_S)
    return status


def _read(sock: socket.socket, inbox: Inbox, outbox: Outbox) -> None:
    num_bad = 0
    for command in read_commands(sock):
        if isinstance(command, ValueError):
            num_bad += 1
            if num_bad <= MAX_REPORTED_FRAMES:
                print(f"chairlift worker: frame rejected: {command}", file=sys.stderr, flush=True)
        elif isinstance(command, Refused):
            outbox.put(command)
        else:
            inbox.put(command)
    # The server is gone, and with it everybody who waited. The main thread may be anywhere: do not ask it.
    os._exit(EXIT_DEAD)


def _ready(loaded: Loaded, load_s: float) -> Ready:
    return Ready(
        model_name=loaded.name,
        max_model_len=loaded.limits.max_model_len,
        max_num_seqs=loaded.limits.max_num_seqs,
        max_num_batched_tokens=loaded.limits.max_num_batched_tokens,
        num_blocks=loaded.cache_shape.num_blocks,
        block_size=loaded.cache_shape.block_size,
        load_s=load_s,
        resident_bytes=resident_bytes(),
        enable_chunked_prefill=loaded.policy.enable_chunked_prefill,
        long_prefill_token_threshold=loaded.policy.long_prefill_token_threshold,
        itl_objective_s=loaded.policy.itl_objective_s,
        ttft_objective_s=loaded.policy.ttft_objective_s,
        encoder=None if loaded.encoder is None else loaded.encoder.ready(),
        generates=loaded.generates,
    )


def resident_bytes() -> int:
    """Memory of this process that is in RAM, in bytes."""
    num_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return num_pages * os.sysconf("SC_PAGE_SIZE")
