"""What a model is, whoever runs it: its files, its numbers, its weights and their encodings.

Most names are resolved when they are first used: a process that wants one field of a config does not load the families,
and one that wants no weights (the server) does not load NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from chairlift.models.resolve import DEFAULT_MODEL, ModelFiles, resolve  # now: it hides a module of the same name

if TYPE_CHECKING:
    from chairlift.models.config import ModelConfig
    from chairlift.models.files import read_json
    from chairlift.models.gguf import GGUF, open_gguf
    from chairlift.models.groups import Int4Groups, Int8Groups
    from chairlift.models.model import Model, open_model
    from chairlift.models.quantize import suits_int4, to_bfloat16, to_float32, to_int4, to_int8
    from chairlift.models.rope import Rope
    from chairlift.models.tensor import Encoding, Tensor
    from chairlift.models.weights import Weights

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

_MODULES = {
    "GGUF": "gguf",
    "Encoding": "tensor",
    "Int4Groups": "groups",
    "Int8Groups": "groups",
    "Model": "model",
    "ModelConfig": "config",
    "Rope": "rope",
    "Tensor": "tensor",
    "Weights": "weights",
    "open_gguf": "gguf",
    "open_model": "model",
    "read_json": "files",
    "suits_int4": "quantize",
    "to_bfloat16": "quantize",
    "to_float32": "quantize",
    "to_int4": "quantize",
    "to_int8": "quantize",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"chairlift.models.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
