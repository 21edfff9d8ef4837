"""Who asks, as the scheduler knows them: a principal by their key, a tenant by what they say."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from chairlift.server.errors import bad_request

MAX_TENANT_CHARS = 128

TENANT_HEADERS = (b"x-gateway-inference-fairness-id", b"x-llm-d-inference-fairness-id")
"""What gateways call it; they know better than the body."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks, known from a key."""

    name: str = ""
    """For logs, weights and limits; empty if the server has no keys."""
    secret: bytes = b""
    """Separates prefix caches: equal for nobody else."""
    routes: frozenset[str] | None = None
    """Names of the routes that are open to it; None: all but those of the owner."""

    def may_use(self, route: str) -> bool:
        """Whether a route of this name is open to it, if it is not one of the owner."""
        return self.routes is None or route in self.routes


ANYBODY = Principal()
"""Who asks a server without keys."""


@dataclass(frozen=True, slots=True)
class View:
    """What somebody who watches the server may see; never what anybody said."""

    principal: Principal
    sees_all: bool
    """Requests of everybody, not only of this principal."""
    sees_own: bool
    sees_sums: bool
    """How many run and wait, how fast, how full the cache is."""


NOTHING = View(ANYBODY, sees_all=False, sees_own=False, sees_sums=False)


def unnamed_principal(digest: bytes) -> Principal:
    """Who has the key of this digest, if nobody gave a name to it."""
    return Principal(principal_name(digest), digest)


def named_principal(name: str, routes: frozenset[str] | None = None) -> Principal:
    """Who goes by this name, whichever of their keys they use."""
    return Principal(name, sha256(b"principal:" + name.encode()).digest(), routes)


def cache_salt(principal: Principal, given: str) -> bytes:
    """Separates prefix caches by who asks, and further by what they say; lengths keep the two apart."""
    if not principal.secret and not given:
        return b""
    secret, named = principal.secret, given.encode()
    return sha256(b"%d:%b%d:%b" % (len(secret), secret, len(named), named)).digest()


def principal_name(digest: bytes) -> str:
    """A name for a key, from its digest: the same in every run, fit for logs and weights, and no way back.

    The first 16 hexadecimal digits of SHA-256 of SHA-256 of the key; empty for a server without keys.
    """
    return sha256(digest).hexdigest()[:16] if digest else ""


def tenant_name(headers: dict[bytes, bytes], user: str) -> str:
    """The part of a principal's traffic that a request belongs to; it counts inside the principal's share only.

    Raises:
        ApiError: 400 for a name that is too long.
    """
    for header in TENANT_HEADERS:
        name = headers.get(header, b"").decode("latin-1").strip()
        if len(name) > MAX_TENANT_CHARS:
            raise bad_request(f"{header.decode()} must have at most {MAX_TENANT_CHARS} characters")
        if name:
            return name
    return user
