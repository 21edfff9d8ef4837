"""A page in one piece: its style, its program and a policy that names both by their digests.

Whatever else gets into such a page, the browser neither runs it nor takes a style from it, and nothing is loaded.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files


def asset(package: str, name: str) -> str:
    """A file among the assets of one of our packages."""
    return files(package).joinpath("assets", name).read_text(encoding="utf-8")


def style(package: str, name: str) -> str:
    """What all our pages look like, and what only this one adds."""
    return asset("chairlift.pages", "base.css") + asset(package, name)


def program(package: str, *names: str) -> str:
    """What the programs of all our pages use, and the parts of this page's own."""
    return asset("chairlift.pages", "base.js") + "".join(asset(package, name) for name in names)


def policy(program: str, style: str, *rules: str) -> str:
    """The Content-Security-Policy of a page with this program and style between its tags; `rules` allow more."""
    named = (f"script-src '{_digest(program)}'", f"style-src '{_digest(style)}'")
    return "; ".join(("default-src 'none'", *named, "base-uri 'none'", "form-action 'none'", *rules))


def _digest(content: str) -> str:
    """What a policy calls an inline element."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
