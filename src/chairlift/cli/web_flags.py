"""The flags that say how a server is reached besides its address: TLS, Unix sockets, proxies, web pages."""

from __future__ import annotations

import argparse
import json
from typing import Any

from chairlift.core.errors import InvalidOption


def add_web_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of TLS, of a Unix socket, and of what stands between; named as in vLLM."""
    group = parser.add_argument_group("web")
    group.add_argument(
        "--uds", metavar="PATH", help="Unix socket to listen on instead of an address; for its owner only"
    )
    group.add_argument(
        "--ssl-certfile", metavar="FILE", help="certificate with those that vouch for it, in PEM: serve TLS only; "
        "read again on SIGHUP"
    )  # fmt: skip
    group.add_argument("--ssl-keyfile", metavar="FILE", help="its key, if that is not in the same file")
    group.add_argument(
        "--ssl-ca-certs", metavar="FILE", help="authorities: clients must show a certificate of one of them"
    )
    group.add_argument(
        "--allowed-origins",
        nargs="+",
        metavar="ORIGIN",
        help="origins such as https://example.org whose web pages may ask; * is any, and needs an --api-key "
        "(default: none)",
    )
    group.add_argument(
        "--ui",
        action=argparse.BooleanOptionalAction,
        help="a page at /ui to watch the server and to chat, and what `chairlift top` shows (default: on where no API "
        "key is asked for)",
    )
    group.add_argument(
        "--root-path", default="", metavar="PREFIX", help="prefix that a proxy puts before all paths, such as /llm"
    )
    group.add_argument(
        "--sse-keep-alive-interval",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="send a comment in a stream that was silent for so long (default: never)",
    )


def web_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What these flags said, by the names of `ServerOptions`.

    Raises:
        InvalidOption: origins that are neither names nor a JSON list of them.
    """
    return {
        "uds": arguments.uds,
        "ssl_certfile": arguments.ssl_certfile,
        "ssl_keyfile": arguments.ssl_keyfile,
        "ssl_ca_certs": arguments.ssl_ca_certs,
        "allowed_origins": origins(arguments.allowed_origins or ()),
        "ui": arguments.ui,
        "root_path": arguments.root_path.rstrip("/"),
        "sse_keep_alive_interval_s": arguments.sse_keep_alive_interval,
    }


def origins(texts: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Each an origin, or a JSON list of them, as vLLM takes it."""
    found: list[str] = []
    for text in texts:
        if not text.startswith("["):
            found.append(text)
            continue
        try:
            listed = json.loads(text)
        except ValueError as error:
            raise InvalidOption(f"allowed_origins: not JSON: {error}") from None
        if any(not isinstance(one, str) for one in listed):
            raise InvalidOption("allowed_origins: a list of texts is wanted")
        found += listed
    return tuple(found)
