"""Writes a model in the precision that it is computed in, as a folder that is loaded by moving bytes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import InvalidModel, InvalidOption
from chairlift.executors.loading import LoadedBytes, Report
from chairlift.executors.openvino.choice import WeightChoice
from chairlift.executors.openvino.graph import weight_kinds
from chairlift.executors.openvino.options import Dtype
from chairlift.models import Int8Groups, Model, Tensor, suits_int4, to_bfloat16, to_float32, to_int4, to_int8
from chairlift.models.groups import Scales
from chairlift.models.prepared import MARK, METADATA, OFFSET, SCALE, WEIGHTS, Prepared, metadata_bytes
from chairlift.models.safetensors_writer import SafetensorsWriter

COPIED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
"""What of a folder goes along, where it is there; and the chat templates for particular uses."""
TEMPLATES = "additional_chat_templates"


def quantize_model(model: Model, weights: WeightChoice, out: Path, report: Report | None = None) -> None:
    """Write `out`, a folder that did not exist: whole, or not at all.

    Loaded in the same precision it gives the same weights to the bit.

    Raises:
        InvalidOption: there is something at `out` already, nothing to put it into, or no room.
        InvalidModel: a weight cannot be put into the precision, or was already.
    """
    if model.prepared is not None:
        raise InvalidModel(f"{model.name} was written by chairlift quantize: take the model that it was made of")
    with _folder(out) as folder:
        _write_weights(model, weights, folder / WEIGHTS, report)
        mark = Prepared(
            format=1,
            dtype=weights.dtype,
            wide_weights=tuple(sorted(weights.wide)),
            head_group=weights.head_group,
            input_group=weights.input_group,
            sampling_defaults=dict(model.files.sampling_defaults),
            matrices={} if model.gguf is None else _matrices(model.gguf.tensors),
        )
        if model.gguf is not None:
            (folder / METADATA).write_bytes(metadata_bytes(model.gguf))
        else:
            _copy(model.files.path, folder)
        (folder / MARK).write_bytes(msgspec.json.format(msgspec.json.encode(mark)))


@contextmanager
def _folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its place when the block ends, and is gone after an error.

    Raises:
        InvalidOption: it cannot be made, or what the block writes into it cannot.
    """
    if out.exists() or out.is_symlink():
        raise InvalidOption(f"{out} is there already, and is left as it is")
    if not out.parent.is_dir():
        raise InvalidOption(f"{out.parent} is no folder")
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        try:
            yield folder
            folder.chmod(0o755)
            folder.rename(out)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    except OSError as error:
        raise InvalidOption(f"{out} could not be written: {error.strerror or error}") from error


def _matrices(tensors: dict[str, Tensor]) -> dict[str, tuple[int, int]]:
    return {name: tensor.shape for name, tensor in tensors.items() if tensor.rows > 1}


def _copy(source: Path, folder: Path) -> None:
    for name in COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    if (source / TEMPLATES).is_dir():
        (folder / TEMPLATES).mkdir()
        for path in (source / TEMPLATES).glob("*.jinja"):
            shutil.copyfile(path, folder / TEMPLATES / path.name)


# ---------------------------------------------------------------- weights


def _write_weights(model: Model, weights: WeightChoice, path: Path, report: Report | None) -> None:
    kinds = _kinds(model, weights)
    loaded = LoadedBytes(sum(model.weights.tensor(name).num_bytes for name in kinds), report)
    with SafetensorsWriter(path, [name + end for name in kinds for end in ("", SCALE, OFFSET)]) as writer:
        for name, (dtype, group) in kinds.items():
            tensor = model.weights.tensor(name)
            for end, label, numbers in _stored(tensor, dtype, group):
                writer.add(name + end, label, numbers)
            loaded.add(tensor.num_bytes)


def _kinds(model: Model, weights: WeightChoice) -> dict[str, tuple[Dtype, int]]:
    """Every weight with its precision and the numbers of it that share a scale.

    A head that is the embedding is a weight of its own, where they are rounded in other groups.
    """
    kinds = weight_kinds(model, weights.dtype, weights.wide, weights.head_group)
    if model.config.tie_embeddings and kinds["head"] == kinds["embed"]:
        del kinds["head"]
    return kinds


def _stored(tensor: Tensor, dtype: Dtype, group: int) -> Iterator[tuple[str, str, NDArray[Any]]]:
    """What is stored of a weight: the end of its name, its type, its numbers."""
    match dtype:
        case "float32":
            yield "", "F32", to_float32(tensor)
        case "bfloat16":
            yield "", "BF16", to_bfloat16(tensor)
        case "int4" if suits_int4(tensor):
            yield from _four_bits(tensor, group)
        case _:
            eight: Int8Groups = to_int8(tensor, group=group)
            yield "", "I8", eight.values.reshape(tensor.shape)
            yield from _scales(eight.scales)


def _four_bits(tensor: Tensor, group: int) -> Iterator[tuple[str, str, NDArray[Any]]]:
    if tensor.cols % 8:
        raise InvalidModel(f"tensor {tensor.name}: rows of {tensor.cols} numbers do not fill words of eight")
    four = to_int4(tensor, group=group)
    if four.offsets is None:
        np.bitwise_xor(four.values, 0x88, out=four.values)  # signed to raised by 8
    yield "", "I32", four.values.reshape(tensor.rows, -1).view("<i4")
    yield from _scales(four.scales)
    if four.offsets is not None:
        yield OFFSET, "F32", four.offsets[..., 0]


def _scales(scales: Scales) -> Iterator[tuple[str, str, NDArray[Any]]]:
    yield SCALE, "F16" if scales.dtype == np.float16 else "F32", scales[..., 0]
