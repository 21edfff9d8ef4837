"""Chairlift: a continuous-batching inference server for language models.

The public names are resolved when they are first used, so that importing a part, such as `chairlift.core`, loads
nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chairlift.core.errors import (
        ChairliftError,
        EngineDead,
        InvalidModel,
        InvalidOption,
        InvalidRequest,
        NeverFits,
        Overloaded,
    )
    from chairlift.core.types import SamplingParams, TokenLogprob
    from chairlift.llm import (
        LLM,
        AsyncLLM,
        ClassificationOutput,
        CompletionOutput,
        EmbeddingOutput,
        RequestOutput,
    )

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncLLM",
    "ChairliftError",
    "ClassificationOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EngineDead",
    "InvalidModel",
    "InvalidOption",
    "InvalidRequest",
    "NeverFits",
    "Overloaded",
    "RequestOutput",
    "SamplingParams",
    "TokenLogprob",
    "__version__",
]

_MODULES = {
    "chairlift.core.errors": (
        "ChairliftError",
        "EngineDead",
        "InvalidModel",
        "InvalidOption",
        "InvalidRequest",
        "NeverFits",
        "Overloaded",
    ),
    "chairlift.core.types": ("SamplingParams", "TokenLogprob"),
    "chairlift.llm": (
        "LLM",
        "AsyncLLM",
        "ClassificationOutput",
        "CompletionOutput",
        "EmbeddingOutput",
        "RequestOutput",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
