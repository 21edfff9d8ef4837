"""`chairlift serve` with the real worker on a device without arithmetic, and everything audited.

    python serve_engine.py WORKER_OPTIONS_JSON SERVER_OPTIONS_JSON [AUDIT_FILE]

What this process connects to, resolves, opens or starts once it is ready goes into AUDIT_FILE, a line for each.
"""

from __future__ import annotations

import os
import sys

from chairlift.core.types import MAX_LOGPROBS
from fakes import VOCAB_SIZE
from server.fake_text import FakeText
from server.serve_fake import main

AUDITED = ("socket.connect", "socket.getaddrinfo", "socket.sendto", "open", "subprocess.Popen", "os.system")


class EngineText(FakeText):
    """The bytes, the two special tokens, and further tokens that are a letter each.

    The device names alternatives that lie next to a token: those past the last one are letters as well.
    """

    vocab_size = VOCAB_SIZE

    def __init__(self) -> None:
        super().__init__()
        self._bytes += [bytes((97 + token % 26,)) for token in range(len(self._bytes), VOCAB_SIZE + MAX_LOGPROBS)]


def audit(path: str) -> None:
    """Begin to write down what happens, without an event of one's own."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def heard(event: str, arguments: tuple[object, ...]) -> None:
        if event in AUDITED:
            os.write(log, f"{event} {arguments[:2]!r}\n".encode())

    sys.addaudithook(heard)


if __name__ == "__main__":
    if len(sys.argv) > 3:
        audit(sys.argv[3])
    sys.exit(main("engine_worker.py", EngineText))
