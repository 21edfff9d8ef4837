"""Who may ask: API keys, admin keys, and for a server without keys the names under which it may be addressed.

A server on the loopback address without a key is still reachable by every web page that its user opens: by a request
to 127.0.0.1 (which carries a foreign `Origin`) or by a name of the page's own that resolves to it (a foreign `Host`).
"""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import urlsplit

from chairlift.server.errors import ApiError

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_ANY = "*"


class Access:
    """Decides on headers alone, before a body is read."""

    def __init__(
        self,
        api_keys: tuple[str, ...],
        host: str,
        allowed_hosts: tuple[str, ...],
        admin_api_keys: tuple[str, ...] = (),
    ) -> None:
        self._digests = [_digest(key.encode()) for key in api_keys]
        self._admin_digests = [_digest(key.encode()) for key in admin_api_keys]
        self._names = _LOOPBACK_NAMES | {host.lower()} | {name.lower() for name in allowed_hosts}
        self._any_name = _ANY in allowed_hosts

    def principal(self, headers: dict[bytes, bytes]) -> bytes:
        """Who asks: the digest of the key, or nothing if no keys are wanted. Prefix caches are separated by it.

        Raises:
            ApiError: 401 without one of the keys; 403 for a foreign origin or host.
        """
        if not self._digests:
            self._check_names(headers)
            return b""
        return _checked(headers, self._digests, "API key")

    def check_admin(self, headers: dict[bytes, bytes]) -> None:
        """Only an admin key opens what is the owner's alone, and opens nothing else.

        Raises:
            ApiError: 401 without one of the admin keys.
        """
        _checked(headers, self._admin_digests, "admin API key")

    def _check_names(self, headers: dict[bytes, bytes]) -> None:
        if self._any_name:
            return
        host = headers.get(b"host")
        if host is not None and _name(f"//{host.decode('latin-1')}") not in self._names:
            raise ApiError(403, "This Host is not served without an API key.", code="host_not_allowed")
        origin = headers.get(b"origin")
        if origin is not None and _name(origin.decode("latin-1")) not in self._names:
            raise ApiError(403, "This Origin is not served without an API key.", code="origin_not_allowed")


def _checked(headers: dict[bytes, bytes], digests: list[bytes], what: str) -> bytes:
    """The digest of the key that was sent, if it is one of `digests`."""
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    given = _digest(key.strip())
    known = False
    for digest in digests:  # all of them, always: the time taken must not tell which one was close
        known |= hmac.compare_digest(digest, given)
    if not known or scheme.lower() != b"bearer":
        raise ApiError(
            401,
            f"A valid {what} is required: Authorization: Bearer <key>.",
            code="invalid_api_key",
            headers=((b"www-authenticate", b"Bearer"),),
        )
    return given


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _name(url: str) -> str | None:
    """The host of a URL, in lower case; None if there is none that can be read."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
