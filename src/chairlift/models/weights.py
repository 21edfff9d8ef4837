"""The weights of a model by canonical name, whatever file they come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from chairlift.core.errors import InvalidModel
from chairlift.models.config import ModelConfig
from chairlift.models.families import Family, shape_of
from chairlift.models.files import shown
from chairlift.models.tensor import Tensor


class Weights:
    """All weights of a model, mapped; their shapes agree with its config."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)

    @property
    def names(self) -> tuple[str, ...]:
        """Canonical names of what is stored; a tied head is not among them."""
        return tuple(self._tensors)

    def tensor(self, name: str) -> Tensor:
        """One weight. A tied `head` is `embed`.

        Raises:
            KeyError: this model has no such weight.
        """
        if name == "head" and "head" not in self._tensors:
            return self._tensors["embed"]
        return self._tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self._tensors or name == "head"


def weights_from_gguf(family: Family, config: ModelConfig, stored: Mapping[str, Tensor], where: str) -> Weights:
    """Bind the tensors of a GGUF file; Q and K rows get their Hugging Face order.

    Raises:
        InvalidModel: a tensor is missing, unexpected, or of another shape than the config says.
    """
    tensors: dict[str, Tensor] = {}
    used = set(family.gguf_ignored)
    for name, layer, weight in family.weights_of(config):
        key = weight.gguf.format(i=layer)
        used.add(key)
        tensor = bound(name, key, stored, shape_of(weight, config), where)
        if weight.gguf_rotary:
            rows = tensor.rows if tensor.rows > 1 else tensor.cols
            tensor = replace(tensor, interleaved_heads=rows // config.head_size)
        tensors[name] = tensor
    refuse_unexpected((key for key in stored if key not in used), where)
    return Weights(tensors)


def weights_from_hf(family: Family, config: ModelConfig, stored: Mapping[str, Tensor], where: str) -> Weights:
    """Bind the tensors of a safetensors checkpoint.

    Raises:
        InvalidModel: a tensor is missing, unexpected, or of another shape than the config says.
    """
    tensors: dict[str, Tensor] = {}
    used: set[str] = set()
    for name, layer, weight in family.weights_of(config):
        key = weight.hf.format(i=layer)
        used.add(key)
        tensors[name] = bound(name, key, stored, shape_of(weight, config), where)
    if config.tie_embeddings:
        used.update(weight.hf for weight in family.weights if weight.when == "own_head")
    refuse_unexpected((key for key in stored if key not in used and not key.endswith(family.hf_ignored)), where)
    return Weights(tensors)


def bound(name: str, key: str, stored: Mapping[str, Tensor], shape: tuple[int, int], where: str) -> Tensor:
    """The stored tensor `key` under its canonical name.

    Raises:
        InvalidModel: it is missing, or of another shape.
    """
    tensor = stored.get(key)
    if tensor is None:
        raise InvalidModel(f"{where}: tensor {key} is missing")
    if tensor.shape != shape:
        raise InvalidModel(f"{where}: tensor {key} has shape {tensor.shape}, the config asks for {shape}")
    if shape[0] == 1 and tensor.encoding.unit > 1:
        raise InvalidModel(f"{where}: vector {key} is stored as {tensor.encoding.label}, which is not supported")
    return replace(tensor, name=name)


def refuse_unexpected(keys: Iterable[str], where: str) -> None:
    """A tensor nobody asked for means that the model computes something which we would leave out."""
    for key in keys:
        raise InvalidModel(f"{where}: unexpected tensor {shown(key)}: the model is not what its config says")
