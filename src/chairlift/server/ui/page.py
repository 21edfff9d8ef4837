"""The page at /ui: one answer that holds nothing of the server it comes from, under a policy of its own."""

from __future__ import annotations

from chairlift.pages.build import asset, policy, program, style

_PACKAGE = "chairlift.server.ui"
PROGRAM = program(_PACKAGE, "tools.js", "chat.js", "ui.js")
_LOOK = style(_PACKAGE, "ui.css")
_POLICY = policy(PROGRAM, _LOOK, "connect-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'")

HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)
"""It runs our program only, asks this server only, stands in no other page, and is not kept past an update."""


def to_html() -> bytes:
    """The page."""
    return asset(_PACKAGE, "ui.html").format(style=_LOOK, program=PROGRAM).encode()
