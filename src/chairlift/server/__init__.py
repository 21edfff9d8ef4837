"""The HTTP side: requests in, frames to the worker, answers out."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from chairlift.server.options import ServerOptions

if TYPE_CHECKING:
    from chairlift.server.run import serve

__all__ = ["ServerOptions", "serve"]


def __getattr__(name: str) -> Any:
    """`serve` is loaded when it is asked for: a command that only reads options loads no web server."""
    if name == "serve":
        return import_module("chairlift.server.run").serve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
