"""safetensors files, read by our own bounded reader; a model may be spread over several, listed in an index.

    | header length, 8 bytes | header: JSON, name -> dtype, shape, data_offsets | data |

Source: the safetensors format description: no duplicate names, no overlaps, no holes, no bytes outside tensors.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import msgspec

from chairlift.core.errors import InvalidModel
from chairlift.models.files import exists, map_file, read_json, shown
from chairlift.models.tensor import Encoding, Tensor

MAX_HEADER_BYTES = 8 << 20
MAX_TENSORS = 1 << 15
MAX_INDEX_BYTES = 16 << 20
MAX_SHARDS = 1024

_ENCODINGS = {
    encoding.label: encoding
    for encoding in (
        Encoding.F32,
        Encoding.F16,
        Encoding.BF16,
        Encoding.F8_E4M3,
        Encoding.I8,
        Encoding.U8,
        Encoding.I32,
        Encoding.I64,
    )
}
"""Integers are what stands beside a quantised weight, or the weight itself in words; alone they are none."""
_Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: Annotated[str, msgspec.Meta(max_length=16)]
    shape: Annotated[list[_Size], msgspec.Meta(max_length=8)]
    data_offsets: tuple[_Size, _Size]


def open_safetensors(path: Path, ignored: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """The tensors of one file by name, mapped. Shapes are `(rows, cols)`, leading dimensions multiplied together.

    Those whose names end with one of `ignored` are left out, whatever their type.

    Raises:
        InvalidModel: malformed, or with a tensor in an unsupported type.
    """
    where = shown(path)
    data = map_file(path)
    length = int.from_bytes(data[:8], "little")
    if data.nbytes < 8 or length > data.nbytes - 8:
        raise InvalidModel(f"{where}: a header of {length} bytes reaches past the end of the file")
    if length > MAX_HEADER_BYTES:
        raise InvalidModel(f"{where}: a header of {length} bytes; at most {MAX_HEADER_BYTES} are read")
    entries = _entries(bytes(data[8 : 8 + length]), where)
    body = data[8 + length :]
    tensors: dict[str, Tensor] = {}
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        first, last = entry.data_offsets
        if first != end:
            problem = "overlaps another" if first < end else "leaves a hole before it"
            raise InvalidModel(f"{where}: tensor {shown(name)} {problem} (data offset {first}, expected {end})")
        if last > body.nbytes:
            raise InvalidModel(f"{where}: tensor {shown(name)} reaches past the end of the file")
        if not name.endswith(ignored):
            tensors[name] = Tensor(name, *_checked(name, entry, where), body[first:last])
        end = last
    if end != body.nbytes:
        raise InvalidModel(f"{where}: {body.nbytes - end} bytes after the last tensor")
    return tensors


def _entries(header: bytes, where: str) -> dict[str, _Entry]:
    """The header's tensors, decoded by type: nothing else can be built from it, however it is nested."""
    if header.count(b":") > 6 * MAX_TENSORS:
        raise InvalidModel(f"{where}: the header has more entries than {MAX_TENSORS} tensors need")
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        metadata = raw.pop("__metadata__", None)
        if len(raw) > MAX_TENSORS:
            raise InvalidModel(f"{where}: {len(raw)} tensors; at most {MAX_TENSORS} are read")
        if metadata is not None:
            msgspec.json.decode(metadata, type=dict[str, str])
        decode = msgspec.json.Decoder(_Entry).decode
        entries = {name: decode(entry) for name, entry in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidModel(f"{where}: the header is not valid: {shown(error)}") from error
    # A later entry of the same name replaces the earlier one in any JSON decoder; the text still shows both.
    if header.count(b'"data_offsets"') != len(entries):
        raise InvalidModel(f"{where}: the header names a tensor twice")
    return entries


def _checked(name: str, entry: _Entry, where: str) -> tuple[tuple[int, int], Encoding]:
    encoding = _ENCODINGS.get(entry.dtype)
    if encoding is None:
        supported = ", ".join(_ENCODINGS)
        raise InvalidModel(
            f"{where}: tensor {shown(name)} is stored as {shown(entry.dtype)}, which is not supported ({supported} are)"
        )
    first, last = entry.data_offsets
    if last < first or math.prod(entry.shape) * encoding.unit_bytes != last - first:
        raise InvalidModel(f"{where}: tensor {shown(name)}: shape {entry.shape} does not fill its {last - first} bytes")
    if 0 in entry.shape:
        raise InvalidModel(f"{where}: tensor {shown(name)} is empty")
    cols = entry.shape[-1] if entry.shape else 1
    return (math.prod(entry.shape[:-1]), cols), encoding


def open_safetensors_folder(folder: Path, ignored: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """All tensors of a model folder: `model.safetensors`, or the files that its index lists.

    Raises:
        InvalidModel: there are none, or one is malformed or missing.
    """
    index_path = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if exists(single):
        return open_safetensors(single, ignored)
    if not exists(index_path):
        pickle = exists(folder / "pytorch_model.bin") or exists(folder / "pytorch_model.bin.index.json")
        hint = " (pytorch_model.bin is a pickle, which may run code, and is never read)" if pickle else ""
        if not pickle and any(folder.glob("model-*.safetensors")):
            hint = f" and no {index_path.name} that says what lies in its parts"
        raise InvalidModel(f"{shown(folder)}: holds no model.safetensors{hint}")
    weight_map = read_json(index_path, MAX_INDEX_BYTES, max_values=8 * MAX_TENSORS).get("weight_map")
    if not isinstance(weight_map, dict) or len(weight_map) > 4 * MAX_TENSORS:
        raise InvalidModel(f"{shown(index_path)}: weight_map must be an object of at most {4 * MAX_TENSORS} names")
    shards = sorted({_shard_name(value, index_path) for value in weight_map.values()})
    if len(shards) > MAX_SHARDS:
        raise InvalidModel(f"{shown(index_path)}: {len(shards)} files; at most {MAX_SHARDS} are read")
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        for name, tensor in open_safetensors(folder / shard, ignored).items():
            if weight_map.get(name) != shard or name in tensors:
                raise InvalidModel(f"{shown(folder / shard)}: tensor {shown(name)} is not where the index says")
            tensors[name] = tensor
    missing = [name for name in weight_map if name not in tensors and not name.endswith(ignored)]
    if missing:
        raise InvalidModel(f"{shown(folder)}: tensor {shown(missing[0])} of the index is in none of its files")
    return tensors


def _shard_name(value: object, index_path: Path) -> str:
    if not isinstance(value, str) or "/" in value or "\\" in value or not value.endswith(".safetensors"):
        raise InvalidModel(f"{shown(index_path)}: {shown(value)} is not the name of a safetensors file in the folder")
    return value
