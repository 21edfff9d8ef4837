"""Writes a safetensors file tensor by tensor: none has to be in memory with another."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from chairlift.core.errors import InvalidModel

_ENTRY_BYTES = 160
"""Room in the header for a tensor beside its name; what is left over is filled with spaces, which the format allows."""


class SafetensorsWriter:
    """An open file for tensors of the given names; on the disk when the block ends without an error."""

    def __init__(self, path: Path, names: list[str]) -> None:
        self._file = path.open("xb")
        self._header_bytes = sum(len(json.dumps(name)) + _ENTRY_BYTES for name in names) // 64 * 64 + 64
        self._file.seek(8 + self._header_bytes)
        self._entries: dict[str, dict[str, Any]] = {}
        self._end = 0

    def add(self, name: str, label: str, numbers: NDArray[Any]) -> None:
        """Write one tensor; `label` is what the format calls its type."""
        self._file.write(numbers.data.cast("B") if numbers.flags.c_contiguous else numbers.tobytes())
        first, self._end = self._end, self._end + numbers.nbytes
        self._entries[name] = {"dtype": label, "shape": list(numbers.shape), "data_offsets": [first, self._end]}

    def __enter__(self) -> SafetensorsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if kind is not None:
                return
            header = json.dumps(self._entries, separators=(",", ":")).encode()
            if len(header) > self._header_bytes:
                raise InvalidModel(f"{self._file.name}: tensors that were not announced")
            self._file.seek(0)
            self._file.write(self._header_bytes.to_bytes(8, "little") + header.ljust(self._header_bytes))
            self._file.flush()
            os.fsync(self._file.fileno())
