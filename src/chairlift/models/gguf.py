"""GGUF files, read by our own bounded reader: metadata, and where every tensor lies.

    | magic version counts | metadata: key, type, value ... | tensor infos: name, dims, type, offset ... | pad | data |

Every count, length and offset is compared with what is left of the file before anything is built from it, so a
malformed file costs one exception. String arrays (the vocabulary) are walked once to find their end and decoded only
when asked for.

Source: the GGUF specification of ggml, versions 2 and 3.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from chairlift.core.errors import InvalidModel
from chairlift.models.files import map_file, shown
from chairlift.models.tensor import Encoding, Tensor

MAX_TENSORS = 1 << 15
MAX_KEYS = 1 << 14
MAX_NAME_BYTES = 1 << 10
MAX_TEXT_BYTES = 8 << 20
"""Bytes of all single string values together: a chat template has a few thousand."""
MAX_ARRAY_STRINGS = 1 << 20
"""Strings in all arrays together: 262,144 tokens with 580,000 merges fit."""
MAX_ARRAY_TEXT_BYTES = 16 << 20
MAX_DIM = 1 << 40
MAX_PARTS = 1024

PART_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE | re.ASCII)
"""How the parts of a split file are named: of the whole, number, of how many, ending."""

_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, Literal["B", "b", "H", "h", "I", "i", "f", "Q", "q", "d"]] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"
}  # fmt: skip
_BOOL = 7
_ENCODINGS = {
    0: Encoding.F32, 1: Encoding.F16, 2: Encoding.Q4_0, 3: Encoding.Q4_1, 6: Encoding.Q5_0, 7: Encoding.Q5_1,
    8: Encoding.Q8_0, 10: Encoding.Q2_K, 11: Encoding.Q3_K, 12: Encoding.Q4_K, 13: Encoding.Q5_K, 14: Encoding.Q6_K,
    20: Encoding.IQ4_NL, 23: Encoding.IQ4_XS, 30: Encoding.BF16, 39: Encoding.MXFP4,
}  # fmt: skip
_OTHER_ENCODINGS = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
}  # fmt: skip

Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True)
class Array:
    """A metadata array in the file: element type, length, and the offset of its first element in bytes."""

    type: int
    count: int
    offset: int


class GGUF:
    """An open GGUF file: typed access to its metadata, and its tensors as stored.

    `tensors` are keyed by GGUF names; dimensions are row-major `(rows, cols)`, leading dimensions multiplied together.
    """

    def __init__(self, path: Path, data: memoryview, values: dict[str, Scalar | Array]) -> None:
        self.path = path
        self.tensors: dict[str, Tensor] = {}
        self.metadata = data[:0]
        """All keys and values, as they lie in the file."""
        self._data = data
        self._values = values

    def has(self, key: str) -> bool:
        return key in self._values

    @property
    def keys(self) -> list[str]:
        return list(self._values)

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer of the metadata.

        Raises:
            InvalidModel: it is missing and has no default, or is no integer.
        """
        value = self._values.get(key, default)
        if value is None:
            raise self.error(f"metadata key {shown(key)} is missing")
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(f"metadata key {shown(key)} must be an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number of the metadata.

        Raises:
            InvalidModel: it is missing and has no default, or is no finite number.
        """
        value = self._values.get(key, default)
        if value is None:
            raise self.error(f"metadata key {shown(key)} is missing")
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise self.error(f"metadata key {shown(key)} must be a finite number")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A truth value of the metadata.

        Raises:
            InvalidModel: it is there and is none.
        """
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"metadata key {shown(key)} must be true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string of the metadata.

        Raises:
            InvalidModel: it is missing and has no default, or is no string.
        """
        value = self._values.get(key, default)
        if value is None:
            raise self.error(f"metadata key {shown(key)} is missing")
        if not isinstance(value, str):
            raise self.error(f"metadata key {shown(key)} must be a string")
        return value

    def is_array(self, key: str) -> bool:
        return isinstance(self._values.get(key), Array)

    def num_elements(self, key: str) -> int:
        """Length of a metadata array.

        Raises:
            InvalidModel: it is missing, or no array.
        """
        return self._array(key).count

    def strings(self, key: str) -> list[str]:
        """A metadata array of strings, decoded anew at each call.

        Raises:
            InvalidModel: it is missing, no array of strings, or not UTF-8.
        """
        array = self._array(key)
        if array.type != _STRING:
            raise self.error(f"metadata key {shown(key)} must be an array of strings")
        view = self._data
        unpack = struct.Struct("<Q").unpack_from
        offset = array.offset
        strings: list[str] = []
        try:
            for _ in range(array.count):
                start = offset + 8
                offset = start + unpack(view, offset)[0]
                strings.append(str(view[start:offset], "utf-8"))
        except UnicodeDecodeError as error:
            raise self.error(f"metadata key {shown(key)}: string {len(strings)} is not UTF-8") from error
        return strings

    def numbers(self, key: str) -> memoryview[int] | memoryview[float]:
        """A metadata array of numbers: a read-only view of the file, whose items are int or float.

        Raises:
            InvalidModel: it is missing, or no array of numbers.
        """
        array = self._array(key)
        if array.type == _STRING:
            raise self.error(f"metadata key {shown(key)} must be an array of numbers")
        kind = _SCALARS[array.type]
        return self._data[array.offset : array.offset + array.count * struct.calcsize("<" + kind)].cast(kind)

    def error(self, message: str) -> InvalidModel:
        return InvalidModel(f"{shown(self.path)}: {message}")

    def _array(self, key: str) -> Array:
        value = self._values.get(key)
        if value is None:
            raise self.error(f"metadata key {shown(key)} is missing")
        if not isinstance(value, Array):
            raise self.error(f"metadata key {shown(key)} must be an array")
        return value


def open_gguf_part(path: Path) -> GGUF:
    """Map one GGUF file and read its header, whether it is a part or whole.

    Raises:
        InvalidModel: not a GGUF file of version 2 or 3, malformed, or with a tensor in an unsupported encoding.
    """
    return _Reader(path, map_file(path)).read()


def stored_type(tensor: Tensor) -> int:
    """The number that GGUF has for how a tensor is stored."""
    return next(kind for kind, encoding in _ENCODINGS.items() if encoding is tensor.encoding)


def open_gguf(path: Path) -> GGUF:
    """Map a GGUF file and read its header; of a split one, map the other parts too, whose tensors are added.

    Raises:
        InvalidModel: not a GGUF file of version 2 or 3, malformed, with a tensor in an unsupported encoding, or a part
            that is not the first, or whose others are missing.
    """
    gguf = open_gguf_part(path)
    count = gguf.integer("split.count", 1)
    if count <= 1:
        return gguf
    number = gguf.integer("split.no", 0)
    named = PART_NAME.fullmatch(path.name)
    if not 0 <= number < count <= MAX_PARTS or named is None or int(named[3]) != count or int(named[2]) != number + 1:
        raise gguf.error(f"part {number + 1} of {count} must be named NAME-{number + 1:05}-of-{count:05}.gguf")
    if number != 0:
        raise gguf.error(f"part {number + 1} of {count}: give the first one, {shown(part_name(path, 1))}")
    for other in range(1, count):
        _add_part(gguf, path.with_name(part_name(path, other + 1)), other, count)
    expected = gguf.integer("split.tensors.count", len(gguf.tensors))
    if expected != len(gguf.tensors):
        raise gguf.error(f"{len(gguf.tensors)} tensors in {count} parts, {expected} are announced")
    return gguf


def _add_part(gguf: GGUF, path: Path, number: int, count: int) -> None:
    part = open_gguf_part(path)
    if (part.integer("split.no", 0), part.integer("split.count", 1)) != (number, count):
        raise part.error(f"not part {number + 1} of {count}")
    if len(gguf.tensors) + len(part.tensors) > MAX_TENSORS:
        raise part.error(f"more than {MAX_TENSORS} tensors in {count} parts")
    for name, tensor in part.tensors.items():
        if name in gguf.tensors:
            raise part.error(f"tensor {shown(name)} is in another part too")
        gguf.tensors[name] = tensor


def part_name(path: Path, number: int) -> str:
    """The name of another part beside a part of a split file; the name itself if it is none."""
    named = PART_NAME.fullmatch(path.name)
    return path.name if named is None else f"{named[1]}-{number:05}-of-{named[3]}{named[4]}"


def model_name(path: Path) -> str:
    """A file's name without its ending, and without the number of a part."""
    named = PART_NAME.fullmatch(path.name)
    return named[1] if named else path.stem


class _Reader:
    """Walks the header once, front to back; `offset` is where the next byte is read."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path = path
        self.view = data
        self.size = data.nbytes
        self.offset = 0
        self.num_strings = 0
        self.text_bytes = 0
        self.array_text_bytes = 0

    def error(self, message: str) -> InvalidModel:
        return InvalidModel(f"{shown(self.path)}: {message}")

    def need(self, num_bytes: int, what: str) -> None:
        if num_bytes > self.size - self.offset:
            raise self.error(f"{what} at byte {self.offset} reaches past the end of the file ({self.size} bytes)")

    def scalar(self, kind: str, what: str) -> int | float:
        form = "<" + kind
        num_bytes = struct.calcsize(form)
        self.need(num_bytes, what)
        value: int | float = struct.unpack_from(form, self.view, self.offset)[0]
        self.offset += num_bytes
        return value

    def unsigned(self, kind: str, what: str) -> int:
        return int(self.scalar(kind, what))

    def string(self, what: str, max_bytes: int) -> str:
        num_bytes = self.unsigned("Q", what)
        if num_bytes > max_bytes:
            raise self.error(f"{what} at byte {self.offset} has {num_bytes} bytes; at most {max_bytes} are read")
        self.need(num_bytes, what)
        end = self.offset + num_bytes
        try:
            text = str(self.view[self.offset : end], "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} at byte {self.offset} is not UTF-8") from error
        self.offset = end
        return text

    def read(self) -> GGUF:
        if self.size < 24 or bytes(self.view[:4]) != b"GGUF":
            raise self.error("not a GGUF file")
        self.offset = 4
        version = self.unsigned("I", "version")
        if version not in (2, 3):
            big_endian = " (big-endian files are not supported)" if version in (2 << 24, 3 << 24) else ""
            raise self.error(f"GGUF version {version} is not supported, only 2 and 3{big_endian}")
        num_tensors = self.unsigned("Q", "number of tensors")
        num_keys = self.unsigned("Q", "number of metadata keys")
        if num_tensors > MAX_TENSORS or num_keys > MAX_KEYS:
            raise self.error(
                f"{num_tensors} tensors and {num_keys} metadata keys; at most {MAX_TENSORS} and {MAX_KEYS} are read"
            )
        values: dict[str, Scalar | Array] = {}
        for _ in range(num_keys):
            key = self.string("metadata key", MAX_NAME_BYTES)
            if key in values:
                raise self.error(f"metadata key {shown(key)} appears twice")
            values[key] = self.value(key)
        gguf = GGUF(self.path, self.view, values)
        gguf.metadata = self.view[24 : self.offset]
        gguf.tensors = self.tensors(num_tensors, self.alignment(gguf))
        return gguf

    def value(self, key: str) -> Scalar | Array:
        kind = self.unsigned("I", "value type")
        if kind == _STRING:
            text = self.string("metadata value", MAX_TEXT_BYTES - self.text_bytes)
            self.text_bytes += len(text.encode())
            return text
        if kind == _ARRAY:
            return self.array(key)
        if kind not in _SCALARS:
            raise self.error(f"metadata key {shown(key)} has unknown type {kind}")
        value = self.scalar(_SCALARS[kind], "metadata value")
        return bool(value) if kind == _BOOL else value

    def array(self, key: str) -> Array:
        kind = self.unsigned("I", "element type")
        count = self.unsigned("Q", "array length")
        array = Array(kind, count, self.offset)
        if kind == _STRING:
            self.skip_strings(count, key)
        elif kind in _SCALARS:
            num_bytes = count * struct.calcsize("<" + _SCALARS[kind])
            self.need(num_bytes, f"array {shown(key)} of {count} elements")
            self.offset += num_bytes
        else:
            nested = "a nested array" if kind == _ARRAY else f"an array of unknown type {kind}"
            raise self.error(f"metadata key {shown(key)} is {nested}, which is not supported")
        return array

    def skip_strings(self, count: int, key: str) -> None:
        self.num_strings += count
        if self.num_strings > MAX_ARRAY_STRINGS:
            raise self.error(f"more than {MAX_ARRAY_STRINGS} strings in metadata arrays")
        self.need(8 * count, f"array {shown(key)} of {count} strings")
        view, offset, size = self.view, self.offset, self.size
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(count):
            if offset + 8 > size:
                break
            offset += 8 + unpack(view, offset)[0]
        else:
            if offset <= size:
                self.array_text_bytes += offset - self.offset
                if self.array_text_bytes > MAX_ARRAY_TEXT_BYTES:
                    raise self.error(f"more than {MAX_ARRAY_TEXT_BYTES} bytes of strings in metadata arrays")
                self.offset = offset
                return
        raise self.error(f"array {shown(key)} of {count} strings reaches past the end of the file")

    def alignment(self, gguf: GGUF) -> int:
        alignment = gguf.integer("general.alignment", 32)
        if not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise self.error(f"alignment {alignment} is not a power of two between 1 and 1048576")
        return alignment

    def tensors(self, num_tensors: int, alignment: int) -> dict[str, Tensor]:
        self.need(num_tensors * 32, f"{num_tensors} tensor descriptions")
        infos: dict[str, tuple[tuple[int, int], Encoding, int, int]] = {}
        for _ in range(num_tensors):
            name = self.string("tensor name", MAX_NAME_BYTES)
            if name in infos:
                raise self.error(f"tensor {shown(name)} appears twice")
            infos[name] = self.info(name, alignment)
        base = -(-self.offset // alignment) * alignment
        end, previous = 0, ""
        for name, (_, _, offset, num_bytes) in sorted(infos.items(), key=lambda item: item[1][2]):
            if offset < end:
                raise self.error(f"tensors {shown(previous)} and {shown(name)} overlap")
            end, previous = offset + num_bytes, name
            if end > self.size - base:
                raise self.error(f"tensor {shown(name)} reaches past the end of the file ({self.size} bytes)")
        return {
            name: Tensor(name, shape, encoding, self.view[base + offset : base + offset + num_bytes])
            for name, (shape, encoding, offset, num_bytes) in infos.items()
        }

    def info(self, name: str, alignment: int) -> tuple[tuple[int, int], Encoding, int, int]:
        """Shape, encoding, offset in the data section and size in bytes of the next tensor description."""
        num_dims = self.unsigned("I", "number of dimensions")
        if not 1 <= num_dims <= 4:
            raise self.error(f"tensor {shown(name)} has {num_dims} dimensions; 1 to 4 are supported")
        dims = [self.unsigned("Q", "dimension") for _ in range(num_dims)]
        if not all(1 <= dim <= MAX_DIM for dim in dims):
            raise self.error(f"tensor {shown(name)} has dimensions {dims}")
        kind = self.unsigned("I", "tensor type")
        if kind not in _ENCODINGS:
            raise self.error(
                f"tensor {shown(name)} is stored as {_OTHER_ENCODINGS.get(kind, f'type {kind}')}, "
                f"which is not supported ({', '.join(e.label for e in _ENCODINGS.values())} are)"
            )
        encoding = _ENCODINGS[kind]
        cols, rows = dims[0], math.prod(dims[1:])
        if cols % encoding.unit:
            raise self.error(f"tensor {shown(name)}: rows of {cols} numbers do not fill blocks of {encoding.unit}")
        offset = self.unsigned("Q", "tensor offset")
        if offset % alignment:
            raise self.error(f"tensor {shown(name)}: offset {offset} is not a multiple of {alignment}")
        return (rows, cols), encoding, offset, rows * (cols // encoding.unit) * encoding.unit_bytes
