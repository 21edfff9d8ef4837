"""What an HTTP server can be told when it starts."""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import dataclass
from typing import get_args
from urllib.parse import urlsplit

from chairlift.core.admission import DEFAULT_MAX_NUM_QUEUED_REQS, AdmissionLimits
from chairlift.core.errors import InvalidOption
from chairlift.core.policy import OrderName
from chairlift.server.logs import LogFormat, LogLevel

DEFAULT_ADMISSION = AdmissionLimits(max_num_queued_reqs=DEFAULT_MAX_NUM_QUEUED_REQS)

OVERLOAD_STATUSES = (429, 503)

ANY_ORIGIN = "*"
_IS_URL = re.compile("[!-~]+")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Everything about the HTTP side that is decided before it starts.

    `port` 0 takes a free one. Without `api_keys` only a loopback `host` is allowed: who can reach the port can use the
    machine. `allowed_hosts` are further names under which a server without keys may be addressed (`*`: any); a web page
    that points its own name at the loopback address is refused by that.

    Raises:
        InvalidOption: a value that makes no sense, or a bind that would be open to everybody.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    api_key_file: str | None = None
    """Path of a file with further keys, and what those may who have them; read again on SIGHUP."""
    admin_api_keys: tuple[str, ...] = ()
    """Open the admin routes and nothing else; without one there are no such routes."""
    metrics_api_keys: tuple[str, ...] = ()
    """Open the metrics and nothing else; without one, API keys open them."""
    keep_explanations: int = 1000
    """How many of the last answers the admin routes can explain."""
    ui: bool | None = None
    """Whether there is a page to watch the server; None: where no API key is asked for."""
    served_model_names: tuple[str, ...] = ()
    """Names that requests may use; the first is the one that responses carry. Empty: the model's own name."""
    allowed_hosts: tuple[str, ...] = ()
    max_body_bytes: int = 4 << 20
    max_header_bytes: int = 16 << 10
    max_num_headers: int = 100
    receive_timeout_s: float = 10.0
    """A request that has not arrived as a whole by then is dropped."""
    keep_alive_timeout_s: int = 75
    """Above what clients keep pooled connections for, so that it is they who close."""
    max_pending_bytes: int = 128 << 10
    """Most bytes kept for a client that does not read, besides those in the transport: 16 KiB, 72 with TLS. Then its
    request is aborted."""
    write_timeout_s: float = 30.0
    """A client that takes nothing for so long is cut off."""
    stall_timeout_s: float = 10.0
    """An engine not heard for so long hangs, and is replaced. It speaks after each step, and each second if idle."""
    max_engine_restarts: int = 5
    """How often in ten minutes an engine that was lost is replaced; then the server ends. 0: it ends at once."""
    shutdown_timeout_s: float = 30.0
    """How long SIGTERM lets streams go on."""
    log_requests: bool = True
    log_format: LogFormat = "text"
    log_level: LogLevel = "info"
    otlp_traces_endpoint: str | None = None
    """URL of an OpenTelemetry collector that gets a trace of each request, over OTLP in HTTP."""
    usage_log: str | None = None
    """File that gets a line for each request: who, how many tokens, how long, and nothing of what was said."""
    batch_dir: str | None = None
    """Folder for files and batches; without one there are none."""
    max_batch_file_bytes: int = 128 << 20
    """Of one file that is sent."""
    max_batch_bytes: int = 1 << 30
    """Of all files of one principal, results included."""
    uds: str | None = None
    """Path of a Unix socket to listen on instead of an address; only its owner may connect."""
    ssl_certfile: str | None = None
    """PEM file with the certificate and those that vouch for it; with it the server speaks TLS and nothing else."""
    ssl_keyfile: str | None = None
    """PEM file with the key, if it is not in the same file."""
    ssl_ca_certs: str | None = None
    """PEM file with authorities; a client must show a certificate of theirs."""
    allowed_origins: tuple[str, ...] = ()
    """Origins whose web pages may ask and read (`*`: any)."""
    root_path: str = ""
    """Prefix that a proxy puts before all paths; it may take it off or not."""
    sse_keep_alive_interval_s: float = 0.0
    """A stream that is silent for so long gets a comment. 0: none."""
    admission: AdmissionLimits = DEFAULT_ADMISSION
    enable_per_request_metrics: bool = False
    """Responses tell how long they took."""
    overload_status: int = 429
    """Of the response to a request that is refused for now."""
    scheduling_policy: OrderName = "fcfs"
    """The engine's, by which the wait of a request with a deadline is estimated."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InvalidOption(f"port must be between 0 and 65535, not {self.port}")
        keys = (*self.api_keys, *self.admin_api_keys, *self.metrics_api_keys)
        if any(not key for key in keys):
            raise InvalidOption("an API key must not be empty")
        if any(not key.isascii() or not key.isprintable() for key in keys):
            raise InvalidOption("an API key must be printable ASCII")
        if set(self.api_keys) & set(self.admin_api_keys):
            raise InvalidOption("an admin API key must not be an API key as well: clients could change limits with it")
        if set(self.metrics_api_keys) & {*self.api_keys, *self.admin_api_keys}:
            raise InvalidOption("a metrics API key must not be an API key or an admin API key as well")
        for name in ("keep_explanations", "max_engine_restarts"):
            if getattr(self, name) < 0:
                raise InvalidOption(f"{name} must be at least 0")
        if any(not name or not name.isprintable() for name in self.served_model_names):
            raise InvalidOption("a served model name must not be empty, nor hold anything that cannot be printed")
        for name in (
            "max_batch_file_bytes",
            "max_batch_bytes",
            "max_body_bytes",
            "max_header_bytes",
            "max_num_headers",
            "max_pending_bytes",
        ):
            if getattr(self, name) < 1:
                raise InvalidOption(f"{name} must be at least 1")
        for name in ("receive_timeout_s", "keep_alive_timeout_s", "write_timeout_s", "stall_timeout_s"):
            if not getattr(self, name) > 0:
                raise InvalidOption(f"{name} must be above 0")
        if self.overload_status not in OVERLOAD_STATUSES:
            raise InvalidOption(f"overload_status must be 429 or 503, not {self.overload_status}")
        if not self.shutdown_timeout_s >= 0:
            raise InvalidOption("shutdown_timeout must be at least 0")
        self._check_web()
        self._check_told()
        if not self.wants_keys and self.uds is None and not is_loopback(self.host):
            host = self.host or "an empty host"
            raise InvalidOption(
                f"{host} can be reached from other machines: give an --api-key or --api-key-file, or bind 127.0.0.1"
            )

    @property
    def wants_keys(self) -> bool:
        """Nobody is served without an API key."""
        return bool(self.api_keys) or self.api_key_file is not None

    @property
    def has_ui(self) -> bool:
        """Whether the server may be watched."""
        return not self.wants_keys if self.ui is None else self.ui

    def _check_web(self) -> None:
        """How it is reached besides its address."""
        for name in ("uds", "usage_log", "batch_dir", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs"):
            value = getattr(self, name)
            if value is not None and (not value or "\0" in value):
                raise InvalidOption(f"{name} must name a file")
        if self.ssl_certfile is None and (self.ssl_keyfile is not None or self.ssl_ca_certs is not None):
            raise InvalidOption("ssl_keyfile and ssl_ca_certs go with ssl_certfile, without which there is no TLS")
        for origin in self.allowed_origins:
            if not is_origin(origin):
                raise InvalidOption(
                    f"an allowed origin is a scheme and a host such as https://example.org, not {origin!r}"
                )
        if ANY_ORIGIN in self.allowed_origins and not self.wants_keys:
            raise InvalidOption("any page could use a server that allows all origins: give an --api-key, or name them")
        root = self.root_path
        if root and (not root.startswith("/") or root.endswith("/") or not root.isascii() or not root.isprintable()):
            raise InvalidOption(f"root_path begins with a slash and ends without one, unlike {root!r}")
        if not 0 <= self.sse_keep_alive_interval_s < math.inf:
            raise InvalidOption("sse_keep_alive_interval must be at least 0")

    def _check_told(self) -> None:
        """What is written down, and who gets it."""
        if self.log_format not in get_args(LogFormat):
            raise InvalidOption(f"log_format must be one of {', '.join(get_args(LogFormat))}, not {self.log_format!r}")
        if self.log_level not in get_args(LogLevel):
            raise InvalidOption(f"log_level must be one of {', '.join(get_args(LogLevel))}, not {self.log_level!r}")
        if self.otlp_traces_endpoint is not None and not is_http_url(self.otlp_traces_endpoint):
            raise InvalidOption("otlp_traces_endpoint must be a URL such as http://127.0.0.1:4318/v1/traces")


def is_http_url(text: str) -> bool:
    """Whether it names a server that speaks HTTP, and nothing that a client of it would not send there."""
    try:
        url = urlsplit(text)
        named = url.hostname is not None and (url.port is None or url.port > 0)
    except ValueError:
        return False
    return named and url.scheme in ("http", "https") and not url.fragment and _IS_URL.fullmatch(text) is not None


def is_origin(text: str) -> bool:
    """Whether a browser could send this as an origin: scheme, host and port, nothing after; or any (`*`)."""
    return text == ANY_ORIGIN or _ORIGIN.fullmatch(text) is not None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`. A name other than localhost may resolve to anything."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
