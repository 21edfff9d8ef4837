"""Encryption of connections, and which clients may open one."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import NoReturn

from chairlift.core.errors import InvalidOption
from chairlift.server.options import ServerOptions


def server_context(options: ServerOptions) -> ssl.SSLContext | None:
    """What TLS the server speaks, None if none; with `ssl_ca_certs`, to nobody without a certificate of theirs.

    Raises:
        InvalidOption: a file that cannot be read, or does not hold what it should.
    """
    if options.ssl_certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, options)
    if options.ssl_ca_certs is not None:
        _load(options.ssl_ca_certs, lambda: context.load_verify_locations(options.ssl_ca_certs))
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def load_certificate(context: ssl.SSLContext, options: ServerOptions) -> None:
    """Read certificate and key, for connections from now on.

    Raises:
        InvalidOption: as from `server_context`; what was loaded before stays.
    """
    certificate, key = options.ssl_certfile, options.ssl_keyfile
    if certificate is not None:
        names = certificate if key is None else f"{certificate} with {key}"
        _load(names, lambda: context.load_cert_chain(certificate, key, _no_password))


def _load(names: str, load: Callable[[], None]) -> None:
    try:
        load()
    except ssl.SSLError as error:
        reason = (error.reason or "not PEM").lower().replace("_", " ")
        raise InvalidOption(f"{names}: cannot be used for TLS: {reason}") from None
    except OSError as error:
        raise InvalidOption(f"{names}: cannot be read: {error.strerror or error}") from None


def _no_password() -> NoReturn:
    """OpenSSL would ask on the terminal, and wait."""
    raise InvalidOption("the TLS key is encrypted: give one that is not")
