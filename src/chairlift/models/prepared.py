"""Folders that `chairlift quantize` wrote: weights as an executor holds them, to be moved and not computed again.

    chairlift.json       what they are in (`Prepared`)
    weights.safetensors  by canonical name: a weight, and for one in groups NAME.scale and perhaps NAME.offset
    metadata.gguf        of a model that was a GGUF file: its metadata and vectors; else
    config.json and so on as they were

Eight-bit numbers are I8 `[rows, cols]`, four-bit ones I32 words of eight, the lowest half first, raised by 8 where
there is no offset. Scales and offsets are `[rows, groups]`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from chairlift.core.errors import InvalidModel
from chairlift.models.config import ModelConfig
from chairlift.models.family import Family
from chairlift.models.files import MAX_CONFIG_BYTES, exists, read_bytes, shown
from chairlift.models.gguf import GGUF, open_gguf_part, stored_type
from chairlift.models.layout import num_rows, slots_of
from chairlift.models.safetensors import open_safetensors
from chairlift.models.tensor import Encoding, Scaling, Tensor
from chairlift.models.weights import Weights, bound, refuse_unexpected

MARK = "chairlift.json"
WEIGHTS = "weights.safetensors"
METADATA = "metadata.gguf"
SCALE, OFFSET = ".scale", ".offset"

_Rows = Annotated[int, msgspec.Meta(ge=2, le=1 << 40)]
_Cols = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]


class Prepared(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a folder's weights are in: `dtype`, but bfloat16 for those named in `wide_weights`.

    `head_group` numbers of a head in eight bits share a scale, and `input_group` of what is multiplied with weights.
    `matrices` are the shapes of a GGUF file's tensors that are not in `metadata.gguf`, by their names there.
    `sampling_defaults` are what its makers recommend, where the files do not say it.
    """

    format: Literal[1]
    dtype: Literal["float32", "bfloat16", "int8", "int4"]
    wide_weights: tuple[str, ...] = ()
    head_group: Literal[32, 64] = 64
    input_group: Literal[32] | None = None
    sampling_defaults: dict[str, float | int] = {}
    matrices: dict[str, tuple[_Rows, _Cols]] = {}


def read_prepared(folder: Path) -> Prepared | None:
    """What a folder is marked as; None if `chairlift quantize` did not write it.

    Raises:
        InvalidModel: the mark is malformed, or of a later format.
    """
    path = folder / MARK
    if not exists(path):
        return None
    try:
        return msgspec.json.decode(read_bytes(path, MAX_CONFIG_BYTES), type=Prepared)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidModel(f"{shown(path)}: not valid: {shown(error)}") from error


# ---------------------------------------------------------------- metadata of a GGUF file


def open_metadata(folder: Path, prepared: Prepared) -> GGUF:
    """The GGUF file that a folder was made of, as far as its config and its tokenizer need it.

    Matrices have their shapes and no numbers.

    Raises:
        InvalidModel: it is malformed.
    """
    gguf = open_gguf_part(folder / METADATA)
    for name, shape in prepared.matrices.items():
        if name in gguf.tensors:
            raise gguf.error(f"tensor {shown(name)} is there twice")
        gguf.tensors[name] = Tensor(name, shape, Encoding.F32, memoryview(b""))
    return gguf


def metadata_bytes(gguf: GGUF) -> bytes:
    """A GGUF file with the metadata and the vectors of another."""
    vectors = [tensor for tensor in gguf.tensors.values() if tensor.rows == 1]
    alignment = gguf.integer("general.alignment", 32)
    head = [b"GGUF", struct.pack("<IQQ", 3, len(vectors), len(gguf.keys)), bytes(gguf.metadata)]
    data = bytearray()
    for tensor in vectors:
        name = tensor.name.encode()
        head += [
            struct.pack("<Q", len(name)),
            name,
            struct.pack("<IQIQ", 1, tensor.cols, stored_type(tensor), len(data)),
        ]
        data += tensor.raw
        data += bytes(-len(data) % alignment)
    header = b"".join(head)
    return header + bytes(-len(header) % alignment) + bytes(data)


# ---------------------------------------------------------------- weights


def prepared_weights(folder: Path, family: Family, config: ModelConfig) -> Weights:
    """The weights of a folder, which agree with its config.

    Raises:
        InvalidModel: they are malformed, one is missing, or of another shape.
    """
    where = shown(folder / WEIGHTS)
    stored = open_safetensors(folder / WEIGHTS)
    joined = {name: _joined(name, stored, where) for name in stored if not name.endswith((SCALE, OFFSET))}
    slots = {slot.name: slot.weight.shape for slot in slots_of(family.weights, config)}
    if config.tie_embeddings and "head" in joined:
        slots["head"] = ("vocab", "hidden")  # rounded in other groups than the embeddings
    tensors = {}
    for name, (rows, cols) in slots.items():
        tensors[name] = bound(name, name, joined, (num_rows(rows, config), num_rows(cols, config)), where)
    refuse_unexpected((name for name in joined if name not in tensors), where)
    refuse_unexpected((name for name in stored if name.removesuffix(SCALE).removesuffix(OFFSET) not in joined), where)
    return Weights(tensors)


def _joined(name: str, stored: Mapping[str, Tensor], where: str) -> Tensor:
    """A weight with what stands beside it."""
    tensor, scales, offsets = stored[name], stored.get(name + SCALE), stored.get(name + OFFSET)
    if scales is None:
        if offsets is not None:
            raise InvalidModel(f"{where}: tensor {shown(name)} has offsets and no scales")
        return tensor
    words = tensor.encoding is Encoding.I32
    if not words and (tensor.encoding is not Encoding.I8 or offsets is not None):
        raise InvalidModel(f"{where}: tensor {shown(name)} is stored as {tensor.encoding.label} and has scales")
    rows, cols = tensor.rows, 8 * tensor.cols if words else tensor.cols
    beside = scales if offsets is None else offsets
    kinds_fit = scales.encoding in (Encoding.F16, Encoding.F32) and beside.encoding in (scales.encoding, Encoding.F32)
    if scales.rows != rows or cols % scales.cols or beside.shape != scales.shape or not kinds_fit:
        raise InvalidModel(f"{where}: the scales of tensor {shown(name)} do not fit its {rows} x {cols} numbers")
    scaling = Scaling(scales, (1, cols // scales.cols), rows, offsets=offsets)
    return replace(tensor, shape=(rows, cols), encoding=Encoding.PACKED4 if words else Encoding.I8, scaling=scaling)
