"""Asking a server what it does now, over one connection that is kept."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from urllib.parse import urlsplit

import msgspec

from chairlift.cli.top_frame import printable
from chairlift.core.errors import ChairliftError, InvalidOption
from chairlift.server.ui.shapes import LIVE_PATH, Live

TIMEOUT_S = 5.0
MAX_BODY_BYTES = 8 << 20
_MAX_SAID_CHARS = 200


class Silent(ChairliftError):
    """The server gave no figures, and this is why, in a line that can be shown."""


class LiveClient:
    """Asks one server; whether it answers is known anew each time.

    Raises:
        InvalidOption: a URL that is not http(s)://host[:port][/prefix], or a key that no header can hold.
    """

    def __init__(self, url: str, api_key: str | None, uds: str | None = None) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise InvalidOption(f"not a URL: {url!r}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidOption(f"not a URL such as http://127.0.0.1:8000: {url!r}")
        if api_key is not None and (not api_key.isascii() or not api_key.isprintable()):
            raise InvalidOption("a key must be printable ASCII")
        self.name = uds or parts.netloc.rpartition("@")[2]
        self._host, self._port, self._scheme = parts.hostname, port, parts.scheme
        self._path = parts.path.rstrip("/").removesuffix("/ui") + LIVE_PATH
        self._headers = {} if not api_key else {"Authorization": f"Bearer {api_key}"}
        self._uds = uds
        self._connection: http.client.HTTPConnection | None = None

    def live(self) -> Live:
        """The server as it is now.

        Raises:
            Silent: it does not answer, or with something else.
        """
        try:
            status, body = self._ask()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Silent(f"{self.name} does not answer: {_reason(error)}") from error
        if status != 200:
            raise Silent(_refusal(status, body, has_key=bool(self._headers)))
        try:
            live = msgspec.json.decode(body, type=Live)
        except msgspec.MsgspecError as error:
            raise Silent(f"{self.name} answers, and not as Chairlift does") from error
        if not live.engines:
            raise Silent(f"{self.name} tells of no engine")
        return live

    def close(self) -> None:
        """Give the connection up; asking again makes a new one."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
        self._connection = None

    def _ask(self) -> tuple[int, bytes]:
        """Once more on a new connection if the one that was kept had been closed meanwhile."""
        is_kept = self._connection is not None
        try:
            return self._exchange(self._connection or self._connect())
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            self.close()
            if not is_kept:
                raise
            return self._exchange(self._connect())

    def _exchange(self, connection: http.client.HTTPConnection) -> tuple[int, bytes]:
        self._connection = connection
        connection.request("GET", self._path, headers=self._headers)
        response = connection.getresponse()
        body = response.read(MAX_BODY_BYTES + 1)
        if response.will_close or len(body) > MAX_BODY_BYTES:
            self.close()
        return response.status, body

    def _connect(self) -> http.client.HTTPConnection:
        if self._uds is not None:
            connection = http.client.HTTPConnection("localhost", timeout=TIMEOUT_S)
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(TIMEOUT_S)
            connection.sock.connect(self._uds)
            return connection
        if self._scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_S, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing within {TIMEOUT_S:g} s"
    return printable(getattr(error, "strerror", None) or str(error) or type(error).__name__)[:_MAX_SAID_CHARS]


def _refusal(status: int, body: bytes, *, has_key: bool) -> str:
    """What a response says that holds no figures."""
    if status == 401:
        wanted = "another key than this" if has_key else "a key"
        return f"the server wants {wanted}: --api-key for what is yours, --admin-api-key for all"
    if status == 404:
        return "the server shows nothing of itself: start it with --ui"
    try:
        said = msgspec.json.decode(body)["error"]["message"]
    except (msgspec.MsgspecError, KeyError, TypeError):
        said = f"the server answers with status {status}"
    return printable(str(said))[:_MAX_SAID_CHARS]
