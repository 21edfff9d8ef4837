"""Who may ask: API keys, keys of the owner, and for a server without keys the names under which it may be addressed.

A server on the loopback address without a key is still reachable by every web page that its user opens: by a request
to 127.0.0.1 (which carries a foreign `Origin`) or by a name of the page's own that resolves to it (a foreign `Host`).
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from chairlift.server.api_keys import key_digest, plain_principals
from chairlift.server.errors import ApiError
from chairlift.server.identity import ANYBODY, Principal, View

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_ANY = "*"


class Access:
    """Decides on headers alone, before a body is read.

    `principals` are those of a key file, by the digest of a key; they come to those of `api_keys`, and may be replaced.
    """

    def __init__(
        self,
        api_keys: tuple[str, ...],
        host: str,
        allowed_hosts: tuple[str, ...],
        admin_api_keys: tuple[str, ...] = (),
        metrics_api_keys: tuple[str, ...] = (),
        principals: Mapping[bytes, Principal] | None = None,
    ) -> None:
        self._plain = plain_principals(api_keys)
        self._admin_digests = tuple(plain_principals(admin_api_keys))
        self._metrics_digests = tuple(plain_principals(metrics_api_keys))
        self._names = _LOOPBACK_NAMES | {host.lower()} | {name.lower() for name in allowed_hosts}
        self._any_name = _ANY in allowed_hosts
        self._principals: dict[bytes, Principal] = {}
        self.set_principals(principals or {})

    def set_principals(self, principals: Mapping[bytes, Principal]) -> None:
        """Who else has keys, from the next request on."""
        self._principals = {**principals, **self._plain}

    @property
    def has_keys(self) -> bool:
        """Without keys anybody on this machine may ask."""
        return bool(self._principals)

    @property
    def has_metrics_keys(self) -> bool:
        return bool(self._metrics_digests)

    def named(self, name: str) -> Principal | None:
        """Who goes by this name, if they have a key."""
        if not self._principals:
            return ANYBODY if name == ANYBODY.name else None
        return next((one for one in self._principals.values() if one.name == name), None)

    def principal(self, headers: Mapping[bytes, bytes]) -> Principal:
        """Who asks.

        Raises:
            ApiError: 401 without one of the keys; 403 for a foreign origin or host.
        """
        if not self._principals:
            self._check_names(headers)
            return ANYBODY
        return self._principals[_checked(headers, self._principals, "API key")]

    def check_admin(self, headers: Mapping[bytes, bytes]) -> None:
        """Only an admin key opens what is the owner's alone, and opens nothing else.

        Raises:
            ApiError: 401 without one of the admin keys.
        """
        _checked(headers, self._admin_digests, "admin API key")

    def check_metrics(self, headers: Mapping[bytes, bytes]) -> None:
        """Metrics tell of everybody's traffic: if there are keys for them, those open them and no others.

        Raises:
            ApiError: as from `principal`, or 401 without one of the metrics keys.
        """
        if self._metrics_digests:
            _checked(headers, self._metrics_digests, "metrics API key")
        else:
            self.principal(headers)

    def view(self, headers: Mapping[bytes, bytes]) -> View:
        """What who watches may see: with an admin key all, with an API key what is their own, and sums as in metrics.

        Where there are no keys at all, whoever may ask sees all; where others than API keys are, sums at most.

        Raises:
            ApiError: as from `principal`.
        """
        if self._is_owner(headers):
            return View(ANYBODY, sees_all=True, sees_own=True, sees_sums=True)
        principal = self.principal(headers)
        is_open = not (self.has_keys or self._admin_digests or self._metrics_digests)
        return View(principal, is_open, is_open or self.has_keys, not self._metrics_digests)

    def _is_owner(self, headers: Mapping[bytes, bytes]) -> bool:
        try:
            self.check_admin(headers)
        except ApiError:
            return False
        return True

    def _check_names(self, headers: Mapping[bytes, bytes]) -> None:
        if self._any_name:
            return
        host = headers.get(b"host")
        if host is not None and _name(f"//{host.decode('latin-1')}") not in self._names:
            raise ApiError(403, "This Host is not served without an API key.", code="host_not_allowed")
        origin = headers.get(b"origin")
        if origin is not None and _name(origin.decode("latin-1")) not in self._names:
            raise ApiError(403, "This Origin is not served without an API key.", code="origin_not_allowed")


def _checked(headers: Mapping[bytes, bytes], digests: Iterable[bytes], what: str) -> bytes:
    """The digest of the key that was sent, if it is one of `digests`."""
    scheme, given = _given(headers)
    known = False
    for digest in digests:  # all of them, always: the time taken must not tell which one was close
        known |= hmac.compare_digest(digest, given)
    if not known or scheme.lower() != b"bearer":
        raise _unauthorized(f"A valid {what} is required: Authorization: Bearer <key>.", "invalid_api_key")
    return given


def _given(headers: Mapping[bytes, bytes]) -> tuple[bytes, bytes]:
    """The scheme and the digest of the key that was sent: clients of Anthropic's API call it `x-api-key`.

    Raises:
        ApiError: 401, two keys were sent. Whose request it is must not depend on which of them is looked at.
    """
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    digest, other = key_digest(key.strip()), headers.get(b"x-api-key", b"").strip()
    if not scheme:
        return b"bearer", key_digest(other)
    if other and not hmac.compare_digest(digest, key_digest(other)):
        raise _unauthorized("Authorization and x-api-key hold different keys: send one of them.", "ambiguous_api_key")
    return scheme, digest


def _unauthorized(message: str, code: str) -> ApiError:
    return ApiError(401, message, code=code, headers=((b"www-authenticate", b"Bearer"),))


def _name(url: str) -> str | None:
    """The host of a URL, in lower case; None if there is none that can be read."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
