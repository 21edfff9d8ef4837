"""Checkpoints quantised for other engines: each weight joined with the scales and zero points that stand beside it.

`quantization_config` says who made them; the shapes of the tensors say the rest. What comes out has the names of a
plain checkpoint. Scales of activations and of the key/value cache are left out: those are computed as they are here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from chairlift.core.errors import InvalidModel
from chairlift.models.fields import Fields
from chairlift.models.files import shown
from chairlift.models.tensor import FLOATS, Encoding, Scaling, Tensor

_OF_ACTIVATIONS = (".input_scale", ".output_scale", ".k_scale", ".v_scale", ".q_scale", ".input_zero_point")
_COMPRESSED_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
_MAX_GROUP = 1 << 24


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the weights of a checkpoint are quantised; `group` is what the config says, 0 a whole row.

    `block` is (rows, cols) of FP8 numbers that share a scale, where neither is the whole.
    """

    method: str
    where: str
    group: int = 0
    block: tuple[int, int] | None = None
    zeros_lack: int = 0

    def error(self, message: str) -> InvalidModel:
        return InvalidModel(f"{self.where}: {message}")


def read_scheme(config: Mapping[str, Any], where: str) -> Scheme | None:
    """The scheme that a `config.json` declares; None if its weights are plain.

    Raises:
        InvalidModel: it is one that is not supported, or a field of the wrong type.
    """
    fields = Fields(config, where).fields("quantization_config") or Fields(config, where).fields("compression_config")
    if fields is None:
        return None
    method = fields.get("quant_method")
    reader = _READERS.get(method) if isinstance(method, str) else None
    if reader is None:
        raise fields.error(f"quant_method {shown(method)} is not supported ({', '.join(_READERS)} are)")
    return reader(fields, where)


def _read_awq(fields: Fields, where: str) -> Scheme:
    bits = fields.get("w_bit") if fields.get("bits") is None else fields.get("bits")
    version = str(fields.get("version") or "gemm").lower()
    if bits != 4 or version != "gemm":
        raise fields.error(f"AWQ with {shown(bits)} bits, version {shown(version)}: only 4 bits, gemm are supported")
    return Scheme(
        "awq", where, _group_size(fields, "q_group_size" if fields.get("group_size") is None else "group_size")
    )


def _read_gptq(fields: Fields, where: str) -> Scheme:
    bits = fields.get("bits")
    version = fields.get("checkpoint_format") or "gptq"
    if bits != 4 or version not in ("gptq", "gptq_v2"):
        raise fields.error(
            f"GPTQ with {shown(bits)} bits, format {shown(version)}: only 4 bits, gptq and gptq_v2 are supported"
        )
    return Scheme("gptq", where, _group_size(fields, "group_size"), zeros_lack=1 if version == "gptq" else 0)


def _read_fp8(fields: Fields, where: str) -> Scheme:
    kind = fields.get("fmt") or "e4m3"
    if kind != "e4m3":
        raise fields.error(f"FP8 numbers {shown(kind)} are not supported, only e4m3")
    return Scheme("fp8", where, block=_block(fields, "weight_block_size"))


def _read_compressed(fields: Fields, where: str) -> Scheme:
    declared = fields.fields("config_groups")
    groups = [] if declared is None else [group for name in declared.names if (group := declared.fields(name))]
    for source in (fields, *groups):
        name = source.get("format")
        if name not in (None, "mixed-precision", *_COMPRESSED_FORMATS):
            raise fields.error(f"format {shown(name)} is not supported ({', '.join(_COMPRESSED_FORMATS)} are)")
    sparsity = fields.fields("sparsity_config")
    if sparsity is not None and sparsity.get("format") not in (None, "dense"):
        raise fields.error(f"sparse weights ({shown(sparsity.get('format'))}) are not supported")
    if fields.get("transform_config"):
        raise fields.error("transform_config is not supported: activations would have to be rotated")
    blocks = {_block(weights, "block_structure") for group in groups if (weights := group.fields("weights"))} - {None}
    if len(blocks) > 1:
        raise fields.error("scales of blocks of several sizes are not supported")
    return Scheme("compressed-tensors", where, block=blocks.pop() if blocks else None)


def _read_mxfp4(_: Fields, where: str) -> Scheme:
    return Scheme("mxfp4", where)


def _group_size(fields: Fields, key: str) -> int:
    return 0 if fields.get(key) == -1 else fields.integer(key, 1, _MAX_GROUP, 128)


def _block(fields: Fields, key: str) -> tuple[int, int] | None:
    value = fields.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(type(n) is int and 0 < n <= _MAX_GROUP for n in value):
        raise fields.error(f"{key} must be two sizes, not {shown(value)}")
    return value[0], value[1]


_READERS: dict[str, Callable[[Fields, str], Scheme]] = {
    "awq": _read_awq,
    "gptq": _read_gptq,
    "fp8": _read_fp8,
    "fbgemm_fp8": _read_fp8,
    "compressed-tensors": _read_compressed,
    "mxfp4": _read_mxfp4,
}


# ---------------------------------------------------------------- weights and what stands beside them


def with_scales(stored: Mapping[str, Tensor], scheme: Scheme) -> dict[str, Tensor]:
    """The tensors of a quantised checkpoint by the names of a plain one.

    Raises:
        InvalidModel: a tensor beside a weight is missing, or of another type or shape than the weight's asks for.
    """
    joining = _Joining(dict(stored), scheme)
    for name in stored:
        if name.endswith(".qweight"):
            joining.add_transposed(name.removesuffix(".qweight"))
        elif name.endswith(".weight_packed"):
            joining.add_packed(name.removesuffix(".weight_packed"))
        elif name.endswith("_blocks") and scheme.method == "mxfp4":
            joining.add_blocks(name.removesuffix("_blocks"))
        elif name.endswith(".weight") and stored[name].encoding in (Encoding.I8, Encoding.F8_E4M3):
            joining.add_bytes(name.removesuffix(".weight"))
    return {name: tensor for name, tensor in joining.left.items() if not name.endswith(_OF_ACTIVATIONS)}


class _Joining:
    """Takes tensors out of `left` and puts the joined ones in."""

    def __init__(self, left: dict[str, Tensor], scheme: Scheme) -> None:
        self.left = left
        self._scheme = scheme

    def add_transposed(self, prefix: str) -> None:
        """A weight of AWQ or GPTQ."""
        scheme = self._scheme
        encoding = {"awq": Encoding.AWQ4, "gptq": Encoding.GPTQ4}.get(scheme.method)
        if encoding is None:
            raise scheme.error(f"tensor {shown(prefix)}.qweight is not what {scheme.method} calls a weight")
        words = self._take(prefix + ".qweight", (Encoding.I32,))
        awq = encoding is Encoding.AWQ4
        cols, rows = (words.rows, 8 * words.cols) if awq else (8 * words.rows, words.cols)
        group = scheme.group or cols
        num_groups = -(-cols // group)
        scales = self._take(prefix + ".scales", FLOATS, (num_groups, rows))
        zeros = self._take(prefix + ".qzeros", (Encoding.I32,), (num_groups, -(-rows // 8)))
        if rows % 8 or cols % 8:
            raise scheme.error(f"tensor {shown(prefix)}.qweight: {rows} x {cols} numbers do not fill words of eight")
        groups = self._groups(prefix + ".g_idx", cols, group, num_groups)
        scaling = Scaling(scales, (1, group), rows, zeros, scheme.zeros_lack, groups)
        self._put(prefix, words, (rows, cols), encoding, scaling)

    def add_packed(self, prefix: str) -> None:
        """A weight of compressed-tensors in words of four or eight numbers."""
        words = self._take(prefix + ".weight_packed", (Encoding.I32,))
        shape = self._take(prefix + ".weight_shape", (Encoding.I64, Encoding.I32), (1, 2))
        rows, cols = (int(n) for n in shape.raw.cast("q" if shape.encoding is Encoding.I64 else "i"))
        if rows != words.rows or cols not in (4 * words.cols, 8 * words.cols):
            raise self._scheme.error(
                f"tensor {shown(prefix)}.weight_packed: {words.rows} rows of {words.cols} words are no weight of "
                f"{rows} x {cols} numbers of 4 or 8 bits"
            )
        per_word = cols // words.cols
        scales, block = self._scales(prefix, rows, cols)
        zeros = None
        if prefix + ".weight_zero_point" in self.left:
            name = prefix + ".weight_zero_point"
            zeros = self._take(name, (Encoding.I32,), (-(-rows // per_word), cols // block[1]))
        groups = self._groups(prefix + ".weight_g_idx", cols, block[1], scales.cols)
        encoding = Encoding.PACKED4 if per_word == 8 else Encoding.PACKED8
        self._put(prefix, words, (rows, cols), encoding, Scaling(scales, block, rows, zeros, groups=groups))

    def add_bytes(self, prefix: str) -> None:
        """A weight of FP8 or int8 numbers as they are; without scales, FP8 numbers mean themselves."""
        weight = self.left[prefix + ".weight"]
        if not any(prefix + end in self.left for end in (".weight_scale", ".weight_scale_inv")):
            return
        scales, block = self._scales(prefix, weight.rows, weight.cols)
        zeros = None
        if prefix + ".weight_zero_point" in self.left:
            zeros = self._take(prefix + ".weight_zero_point", (weight.encoding,))
            if zeros.shape != scales.shape or block[0] != 1 or weight.encoding is not Encoding.I8:
                raise self._scheme.error(f"tensor {shown(prefix)}.weight_zero_point has shape {zeros.shape}")
        self._put(prefix, weight, weight.shape, weight.encoding, Scaling(scales, block, weight.rows, zeros))

    def add_blocks(self, name: str) -> None:
        """A weight of MXFP4: 16 bytes of two numbers to each byte of scale."""
        blocks, scales = (self._take(name + end, (Encoding.U8,)) for end in ("_blocks", "_scales"))
        rows, groups = scales.shape
        if blocks.shape not in ((rows * groups, 16), (rows, groups * 16)):
            raise self._scheme.error(
                f"tensor {shown(name)}_blocks has shape {blocks.shape} beside scales of {rows} x {groups}"
            )
        if name in self.left:
            raise self._scheme.error(f"tensor {shown(name)} is there twice, plain and quantised")
        scaling = Scaling(scales, (1, 32), rows)
        self.left[name] = replace(
            blocks, name=name, shape=(rows, 32 * groups), encoding=Encoding.F4_E2M1, scaling=scaling
        )

    def _scales(self, prefix: str, rows: int, cols: int) -> tuple[Tensor, tuple[int, int]]:
        """The scales of a weight and how many (rows, cols) share one: all, a row, a group of a row, or a block."""
        name = prefix + (".weight_scale_inv" if prefix + ".weight_scale_inv" in self.left else ".weight_scale")
        scales = self._take(name, FLOATS)
        if scales.shape == (1, rows) and rows > 1:
            scales = replace(scales, shape=(rows, 1))
        if scales.shape == (1, 1):
            return scales, (rows, cols)
        block = self._scheme.block
        if block is not None and scales.shape == (-(-rows // block[0]), -(-cols // block[1])):
            return scales, block
        if scales.rows != rows or cols % scales.cols:
            raise self._scheme.error(
                f"tensor {shown(name)} has shape {scales.shape} beside a weight of {rows} x {cols}"
            )
        return scales, (1, cols // scales.cols)

    def _groups(self, name: str, cols: int, group: int, num_groups: int) -> Tensor | None:
        """Which group each column belongs to; None if the next ones always share one."""
        if name not in self.left:
            return None
        groups = self._take(name, (Encoding.I32,), (1, cols))
        numbers = groups.raw.cast("i").tolist()
        if numbers == [j // group for j in range(cols)] or set(numbers) in ({-1}, {0}):  # the last two: not written
            return None
        if not 0 <= min(numbers) <= max(numbers) < num_groups:
            raise self._scheme.error(f"tensor {shown(name)} names groups outside 0 to {num_groups - 1}")
        return groups

    def _take(self, name: str, encodings: tuple[Encoding, ...], shape: tuple[int, int] | None = None) -> Tensor:
        tensor = self.left.pop(name, None)
        if tensor is None:
            raise self._scheme.error(f"tensor {shown(name)} is missing")
        if tensor.encoding not in encodings:
            wanted = " or ".join(encoding.label for encoding in encodings)
            raise self._scheme.error(f"tensor {shown(name)} is stored as {tensor.encoding.label}, not as {wanted}")
        if shape is not None and tensor.shape != shape:
            raise self._scheme.error(f"tensor {shown(name)} has shape {tensor.shape}, the weight asks for {shape}")
        return tensor

    def _put(self, prefix: str, stored: Tensor, shape: tuple[int, int], encoding: Encoding, scaling: Scaling) -> None:
        name = prefix + ".weight"
        if encoding not in (Encoding.I8, Encoding.F8_E4M3) and name in self.left:
            raise self._scheme.error(f"tensor {shown(name)} is there twice, plain and quantised")
        self.left[name] = replace(stored, name=name, shape=shape, encoding=encoding, scaling=scaling)
