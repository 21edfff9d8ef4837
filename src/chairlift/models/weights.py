"""The weights of a model by canonical name, whatever file they come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from chairlift.core.errors import InvalidModel
from chairlift.models.config import ModelConfig
from chairlift.models.family import Family
from chairlift.models.files import shown
from chairlift.models.layout import Place, Slot, num_rows, slots_of
from chairlift.models.tensor import FLOATS, Encoding, Tensor

_NO_NUMBERS = (Encoding.I8, Encoding.U8, Encoding.I32, Encoding.I64)
"""What means nothing without the scales beside it."""


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
    for slot in slots_of(family.weights, config):
        place, each = slot.weight.gguf, slot.weight.gguf_each
        if each is not None and each.name.format(i=slot.layer, n=slot.copy) in stored:
            place = each
        tensor = _placed(slot, place, config, stored, used, where)
        if slot.weight.gguf_rotary:
            rows = tensor.rows if tensor.rows > 1 else tensor.cols
            tensor = replace(tensor, interleaved_heads=rows // config.head_size)
        tensors[slot.name] = tensor
    refuse_unexpected((key for key in stored if key not in used), where)
    return Weights(tensors)


def weights_from_hf(family: Family, config: ModelConfig, stored: Mapping[str, Tensor], where: str) -> Weights:
    """Bind the tensors of a safetensors checkpoint.

    Raises:
        InvalidModel: a tensor is missing, unexpected, or of another shape than the config says.
    """
    tensors: dict[str, Tensor] = {}
    used: set[str] = set()
    if family.hf_wrappers:
        stored = _text_part(stored)
    if family.hf_prefix:
        stored = {key.removeprefix(family.hf_prefix): tensor for key, tensor in stored.items()}
    for slot in slots_of(family.weights, config):
        tensors[slot.name] = _placed(slot, slot.weight.hf, config, stored, used, where)
    if config.tie_embeddings:
        used.update(weight.hf.name for weight in family.weights if weight.name == "head")
    unexpected = (key for key in stored if key not in used and not key.endswith(family.hf_ignored))
    refuse_unexpected((key for key in unexpected if not _adds_nothing(key, stored[key])), where)
    return Weights(tensors)


_PICTURE_PARTS = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")
_TEXT_PARTS = {"language_model.": "", "model.language_model.": "model."}


def _text_part(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the text part of a model for texts and pictures, by the names that they have in one for texts."""
    text = {}
    for key, tensor in stored.items():
        if not key.startswith(_PICTURE_PARTS):
            prefix = next((prefix for prefix in _TEXT_PARTS if key.startswith(prefix)), "")
            text[_TEXT_PARTS.get(prefix, "") + key.removeprefix(prefix)] = tensor
    return text


def _placed(
    slot: Slot, place: Place, config: ModelConfig, stored: Mapping[str, Tensor], used: set[str], where: str
) -> Tensor:
    """The weight of a slot: a tensor, or a part of one that holds several; `used` learns the tensor's name.

    Raises:
        InvalidModel: the tensor is missing, or of another shape than the config says.
    """
    key = place.name.format(i=slot.layer, n=slot.copy)
    used.add(key)
    rows, cols = (num_rows(dim, config) for dim in slot.weight.shape)
    is_vector = slot.weight.shape[0] == "one"
    sizes = [num_rows(dim, config) for dim in place.parts] or [cols if is_vector else rows]
    is_stacked = slot.weight.copies != "one" and "{n}" not in place.name
    count, copy = (slot.weight.num_copies(config), slot.copy) if is_stacked else (1, 0)
    if is_vector:
        tensor = bound(slot.name, key, stored, (count, sum(sizes)), where).rows_between(copy, 1)
    elif _lies_transposed(place, stored.get(key)):
        tensor = bound(slot.name, key, stored, (count * cols, sum(sizes)), where)
        if tensor.encoding not in FLOATS or tensor.scaling is not None:
            kind = tensor.encoding.label
            raise InvalidModel(f"{where}: tensor {key} lies transposed as {kind}, which is not supported")
        tensor = tensor.rows_between(copy * cols, cols).transposed()
    else:
        whole = sum(sizes)
        tensor = bound(slot.name, key, stored, (count * whole, cols), where).rows_between(copy * whole, whole)
    if len(sizes) == 1:
        return tensor
    if place.interleaved:
        if tensor.encoding not in (*FLOATS, Encoding.F4_E2M1) or not (tensor.columns or tensor.scaling or is_vector):
            kind = tensor.encoding.label
            raise InvalidModel(f"{where}: the parts of tensor {key} are interleaved as {kind}, which is not supported")
        return tensor.deinterleaved(place.part, len(sizes))
    first = sum(sizes[: place.part])
    return tensor.numbers_between(first, cols) if is_vector else tensor.rows_between(first, rows)


def _lies_transposed(place: Place, tensor: Tensor | None) -> bool:
    """Numbers in blocks lie along the rows of a weight in any case."""
    return place.transposed and not (tensor is not None and tensor.encoding is Encoding.F4_E2M1)


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
    if (shape[0] == 1 and tensor.encoding.unit > 1) or (tensor.scaling is None and tensor.encoding in _NO_NUMBERS):
        what = "vector" if shape[0] == 1 else "tensor"
        raise InvalidModel(f"{where}: {what} {key} is stored as {tensor.encoding.label}, which is not supported")
    return replace(tensor, name=name)


def _adds_nothing(key: str, tensor: Tensor) -> bool:
    """A bias of zeros, which some quantisers write beside every weight."""
    return key.endswith(".bias") and tensor.rows == 1 and not any(tensor.raw)


def refuse_unexpected(keys: Iterable[str], where: str) -> None:
    """A tensor nobody asked for means that the model computes something which we would leave out."""
    for key in keys:
        raise InvalidModel(f"{where}: unexpected tensor {shown(key)}: the model is not what its config says")
