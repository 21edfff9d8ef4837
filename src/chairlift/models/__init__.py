"""What a model is, whoever runs it: its files, its numbers, its weights and their encodings.

Only `quantize` and `groups` need NumPy; their names are resolved when they are first used, so that a process which
wants no weights (the server) does not load it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from chairlift.models.config import ModelConfig
from chairlift.models.files import read_json
from chairlift.models.gguf import GGUF, open_gguf
from chairlift.models.model import Model, open_model
from chairlift.models.resolve import DEFAULT_MODEL, ModelFiles, resolve
from chairlift.models.rope import Rope
from chairlift.models.tensor import Encoding, Tensor
from chairlift.models.weights import Weights

if TYPE_CHECKING:
    from chairlift.models.groups import Int4Groups, Int8Groups
    from chairlift.models.quantize import suits_int4, to_bfloat16, to_float32, to_int4, to_int8

__all__ = [
    "DEFAULT_MODEL",
    "GGUF",
    "Encoding",
    "Int4Groups",
    "Int8Groups",
    "Model",
    "ModelConfig",
    "ModelFiles",
    "Rope",
    "Tensor",
    "Weights",
    "open_gguf",
    "open_model",
    "read_json",
    "resolve",
    "suits_int4",
    "to_bfloat16",
    "to_float32",
    "to_int4",
    "to_int8",
]

_NUMPY_MODULES = {
    "Int4Groups": "groups",
    "Int8Groups": "groups",
    "suits_int4": "quantize",
    "to_bfloat16": "quantize",
    "to_float32": "quantize",
    "to_int4": "quantize",
    "to_int8": "quantize",
}


def __getattr__(name: str) -> Any:
    if name in _NUMPY_MODULES:
        return getattr(import_module(f"chairlift.models.{_NUMPY_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
