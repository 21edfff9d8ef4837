"""Files that lie about themselves: one clear line each, whatever the lie."""

import gc
import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chairlift.core.errors import InvalidModel
from chairlift.models import ModelFiles, open_gguf, open_model, read_json
from chairlift.models.files import map_file, parse_json
from chairlift.models.safetensors import open_safetensors
from models.writers import encode, gguf_string, gguf_value, tiny_llama, write_gguf, write_safetensors

HUGE = 2**63


def refused(opening: Callable[[Path], object], path: Path) -> str:
    """The one line with which a file is refused."""
    with pytest.raises(InvalidModel) as error:
        opening(path)
    line = str(error.value)
    assert line.isprintable() and len(line) < 500
    return line


# ---------------------------------------------------------------- GGUF


def gguf(body: bytes = b"", num_tensors: int = 0, num_keys: int = 0, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_keys) + body


def info(name: str, dims: list[int], kind: int = 0, offset: int = 0, num_dims: int | None = None) -> bytes:
    count = len(dims) if num_dims is None else num_dims
    return gguf_string(name) + struct.pack(f"<I{len(dims)}QIQ", count, *dims, kind, offset)


def key(name: str, value: Any = 1) -> bytes:
    return gguf_string(name) + gguf_value(value)


def array(kind: int, count: int) -> bytes:
    return gguf_string("a") + struct.pack("<IIQ", 9, kind, count)


PAD = bytes(4096)
MALFORMED_GGUF = {
    "empty": (b"", "empty"),
    "short": (b"GGUF", "not a GGUF file"),
    "other magic": (gguf(magic=b"GGML"), "not a GGUF file"),
    "version 1": (gguf(version=1), "version 1"),
    "version 4": (gguf(version=4), "version 4"),
    "big-endian": (gguf(version=3 << 24), "big-endian"),
    "2^63 tensors": (gguf(num_tensors=HUGE), "tensors"),
    "100,000 tensors": (gguf(PAD, num_tensors=100_000), "100000 tensors"),
    "2^64 - 1 keys": (gguf(num_keys=2**64 - 1), "metadata keys"),
    "more tensors than bytes": (gguf(num_tensors=1000), "past the end"),
    "key of 2^63 bytes": (gguf(struct.pack("<Q", HUGE) + PAD, num_keys=1), "at most"),
    "key past the end": (gguf(struct.pack("<Q", 100) + b"abc", num_keys=1), "past the end"),
    "key not UTF-8": (gguf(gguf_string(b"\xff\xfe") + PAD, num_keys=1), "UTF-8"),
    "unknown value type": (gguf(gguf_string("a") + struct.pack("<I", 13) + PAD, num_keys=1), "unknown type 13"),
    "value of 2^63 bytes": (gguf(gguf_string("a") + struct.pack("<IQ", 8, HUGE) + PAD, num_keys=1), "at most"),
    "value past the end": (gguf(gguf_string("a") + struct.pack("<I", 10), num_keys=1), "past the end"),
    "2^63 numbers": (gguf(array(4, HUGE) + PAD, num_keys=1), "past the end"),
    "2^62 numbers of 8 bytes": (gguf(array(12, 2**62) + PAD, num_keys=1), "past the end"),
    "2^63 strings": (gguf(array(8, HUGE) + PAD, num_keys=1), "strings"),
    "strings past the end": (gguf(array(8, 600) + PAD, num_keys=1), "past the end"),
    "string of 2^63 bytes in an array": (gguf(array(8, 2) + struct.pack("<Q", HUGE) + PAD, num_keys=1), "past the end"),
    "nested array": (gguf(array(9, 1) + array(9, 1) * 20, num_keys=1), "nested"),
    "array of unknown type": (gguf(array(77, 1) + PAD, num_keys=1), "unknown type 77"),
    "key twice": (gguf(key("a") + key("a"), num_keys=2), "appears twice"),
    "alignment 0": (gguf(key("general.alignment", 0), num_keys=1), "alignment 0"),
    "alignment 24": (gguf(key("general.alignment", 24), num_keys=1), "alignment 24"),
    "alignment 2^31": (gguf(key("general.alignment", 2**31), num_keys=1), "alignment 2147483648"),
    "alignment text": (gguf(key("general.alignment", "32"), num_keys=1), "must be an integer"),
    "tensor twice": (gguf(info("a", [1]) * 2 + PAD, 2), "appears twice"),
    "tensor name of 2^63 bytes": (gguf(struct.pack("<Q", HUGE) + PAD, 1), "at most"),
    "no dimensions": (gguf(info("a", []) + PAD, 1), "0 dimensions"),
    "5 dimensions": (gguf(info("a", [1] * 5) + PAD, 1), "5 dimensions"),
    "2^32 - 1 dimensions": (gguf(info("a", [1], num_dims=2**32 - 1) + PAD, 1), "4294967295 dimensions"),
    "dimension 0": (gguf(info("a", [32, 0]) + PAD, 1), "dimensions [32, 0]"),
    "dimension 2^63": (gguf(info("a", [HUGE]) + PAD, 1), "dimensions"),
    "dimensions whose product is 0 in 64 bits": (gguf(info("a", [2**32, 2**32]) + PAD, 1), "past the end"),
    "unknown tensor type": (gguf(info("a", [32], 99) + PAD, 1), "type 99"),
    "IQ2_XS": (gguf(info("a", [256], 17) + PAD, 1), "stored as IQ2_XS"),
    "row of 32 numbers in blocks of 256": (gguf(info("a", [32], 12) + PAD, 1), "blocks of 256"),
    "row of 33 numbers in blocks of 32": (gguf(info("a", [33], 8) + PAD, 1), "blocks of 32"),
    "offset 1": (gguf(info("a", [1], offset=1) + PAD, 1), "multiple of 32"),
    "offset past the end": (gguf(info("a", [1], offset=2**40) + PAD, 1), "past the end"),
    "offset 2^64 - 32": (gguf(info("a", [1], offset=2**64 - 32) + PAD, 1), "past the end"),
    "tensor past the end": (gguf(info("a", [2000]) + PAD, 1), "past the end"),
    "overlap": (gguf(info("a", [16]) + info("b", [8], offset=32) + PAD, 2), "overlap"),
    "same place": (gguf(info("a", [8]) + info("b", [8]) + PAD, 2), "overlap"),
}


@pytest.mark.parametrize("name", MALFORMED_GGUF)
def test_gguf(tmp_path: Path, name: str) -> None:
    data, message = MALFORMED_GGUF[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    assert message in refused(open_gguf, path)


def test_gguf_bounds_are_not_reached_by_what_is_allowed(tmp_path: Path) -> None:
    """The same pieces, put together rightly, open: the refusals above are not refusals of everything."""
    path = tmp_path / "m.gguf"
    body = key("a", "x") + key("general.alignment", 64) + array(8, 2) + gguf_string("p") + gguf_string("q")
    body = body.replace(gguf_string("a") + struct.pack("<II", 9, 8), gguf_string("b") + struct.pack("<II", 9, 8))
    path.write_bytes(gguf(body + info("t", [8, 2]) + info("u", [32], 8, 64) + PAD, 2, 3))
    file = open_gguf(path)
    assert file.text("a") == "x" and file.strings("b") == ["p", "q"]
    assert file.tensors["t"].shape == (2, 8) and file.tensors["u"].raw.nbytes == 34


def test_metadata_access_is_typed(tmp_path: Path) -> None:
    metadata = {
        "int": 3, "float": 0.5, "text": "x", "flag": True, "strings": ["a", "b"], "numbers": np.arange(3, dtype="<i4")
    }  # fmt: skip
    file = open_gguf(write_gguf(tmp_path / "m.gguf", metadata, {}))
    assert file.keys == list(metadata)
    assert (file.integer("int"), file.number("float"), file.number("int")) == (3, 0.5, 3)
    assert (file.text("text"), file.flag("flag", False)) == ("x", True)
    assert file.strings("strings") == ["a", "b"] and list(file.numbers("numbers")) == [0, 1, 2]
    assert (file.integer("no", 7), file.number("no", 1.5), file.text("no", "d"), file.flag("no", True)) == (
        7, 1.5, "d", True
    )  # fmt: skip
    readers: list[Callable[[str], object]] = [
        file.integer, file.number, file.text, file.strings, file.numbers, file.num_elements
    ]  # fmt: skip
    for read in readers:
        with pytest.raises(InvalidModel, match="missing"):
            read("no")
    wrong_types: list[tuple[Callable[[str], object], str]] = [
        (file.integer, "flag"), (file.integer, "float"), (file.number, "text"), (file.text, "int"),
        (file.strings, "text"), (file.strings, "numbers"), (file.numbers, "strings"), (file.num_elements, "int"),
    ]  # fmt: skip
    for read, wrong in wrong_types:
        with pytest.raises(InvalidModel, match="must be"):
            read(wrong)
    with pytest.raises(InvalidModel, match="must be true or false"):
        file.flag("int", True)


def test_a_token_that_is_not_utf8(tmp_path: Path) -> None:
    file = open_gguf(write_gguf(tmp_path / "m.gguf", {"tokens": ["a", "b"]}, {}))
    data = file.path.read_bytes().replace(gguf_string("b"), gguf_string(b"\xff"))
    file.path.write_bytes(data)
    assert "string 1 is not UTF-8" in refused(lambda path: open_gguf(path).strings("tokens"), file.path)


@pytest.mark.parametrize("name", ["tokens", "token_type", "scores"])
def test_a_vocabulary_with_gaps(tmp_path: Path, name: str) -> None:
    values: Any = ["t"] * 127 if name == "tokens" else np.zeros(127, "<f4")
    path = tiny_llama().write_gguf(tmp_path / "m.gguf", extra={f"tokenizer.ggml.{name}": values})
    assert "127 entries for a vocabulary of 128" in refused(lambda p: open_model(ModelFiles("m", p, "gguf")), path)


# ---------------------------------------------------------------- safetensors


def safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape: Any, offsets: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


ONE = b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
MALFORMED_SAFETENSORS = {
    "empty": (b"", "empty"),
    "5 bytes": (b"\1\0\0\0\0", "past the end"),
    "header of 2^63 bytes": (safetensors({}, length=HUGE), "past the end"),
    "header of 2^64 - 1 bytes": (safetensors({}, length=2**64 - 1), "past the end"),
    "header one byte too long": (safetensors({}, length=3), "past the end"),
    "not JSON": (safetensors(b"{"), "not valid"),
    "not UTF-8": (safetensors(b'{"\xff":' + ONE + b"}", bytes(4)), "not valid"),
    "not an object": (safetensors(b"[]"), "not valid"),
    "deep": (safetensors(b'{"a":' * 100_000), "not valid"),
    "deep entry": (safetensors(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "not valid"),
    "twice": (safetensors(b'{"a":' + ONE + b',"a":' + ONE + b"}", bytes(4)), "twice"),
    "unknown field": (safetensors({"a": {**entry([1], [0, 4]), "code": 1}}, bytes(4)), "not valid"),
    "missing field": (safetensors({"a": {"dtype": "F32", "shape": [1]}}, bytes(4)), "not valid"),
    "metadata not text": (safetensors({"__metadata__": {"a": [1]}}), "not valid"),
    "U16": (safetensors({"a": entry([8], [0, 8], "U16")}, bytes(8)), "stored as U16"),
    "unknown type": (safetensors({"a": entry([1], [0, 4], "F\n32")}, bytes(4)), "stored as F\\n32"),
    "type not text": (safetensors({"a": entry([1], [0, 4], 32)}, bytes(4)), "not valid"),
    "shape not a list": (safetensors({"a": entry(1, [0, 4])}, bytes(4)), "not valid"),
    "shape negative": (safetensors({"a": entry([-1], [0, 4])}, bytes(4)), "not valid"),
    "shape fractional": (safetensors({"a": entry([0.5], [0, 4])}, bytes(4)), "not valid"),
    "shape of 9 dimensions": (safetensors({"a": entry([1] * 9, [0, 4])}, bytes(4)), "not valid"),
    "shape 2^62": (safetensors({"a": entry([2**62], [0, 4])}, bytes(4)), "does not fill"),
    "shape whose product is 0 in 64 bits": (safetensors({"a": entry([2**32, 2**32], [0, 0])}), "does not fill"),
    "shape of zero": (safetensors({"a": entry([0], [0, 0])}), "is empty"),
    "offset negative": (safetensors({"a": entry([1], [-4, 0])}, bytes(4)), "not valid"),
    "offset past the end": (safetensors({"a": entry([1], [0, 4])}, bytes(3)), "past the end"),
    "offsets swapped": (safetensors({"a": entry([1], [4, 0])}, bytes(4)), "expected 0"),
    "three offsets": (safetensors({"a": entry([1], [0, 4, 8])}, bytes(4)), "not valid"),
    "hole": (safetensors({"a": entry([1], [0, 4]), "b": entry([1], [8, 12])}, bytes(12)), "hole"),
    "overlap": (safetensors({"a": entry([2], [0, 8]), "b": entry([1], [4, 8])}, bytes(8)), "overlaps"),
    "same place": (safetensors({"a": entry([1], [0, 4]), "b": entry([1], [0, 4])}, bytes(4)), "overlaps"),
    "bytes left over": (safetensors({"a": entry([1], [0, 4])}, bytes(5)), "1 bytes after"),
    "too many entries": (safetensors(b"{" + b'"a":0,' * 200_000 + b'"b":0}'), "more entries"),
}


@pytest.mark.parametrize("name", MALFORMED_SAFETENSORS)
def test_safetensors(tmp_path: Path, name: str) -> None:
    data, message = MALFORMED_SAFETENSORS[name]
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    assert message in refused(open_safetensors, path)


def test_40_000_tensors_are_too_many(tmp_path: Path) -> None:
    tensors = {f"t{i}": encode(np.zeros(1, np.float32), "F32") for i in range(40_000)}
    assert "at most 32768" in refused(open_safetensors, write_safetensors(tmp_path / "m.safetensors", tensors))


def test_a_scalar_and_three_dimensions(tmp_path: Path) -> None:
    tensors = {"a": encode(np.zeros((2, 3, 4), np.float32), "F16"), "s": ("F32", (), bytes(4))}
    opened = open_safetensors(write_safetensors(tmp_path / "m.safetensors", tensors, {"k": "v"}))
    assert opened["a"].shape == (6, 4) and opened["s"].shape == (1, 1)


# ---------------------------------------------------------------- the index of a spread model


def sharded(folder: Path) -> Path:
    return tiny_llama().write_folder(folder, num_shards=2)


def change_index(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    path = folder / "model.safetensors.index.json"
    values = json.loads(path.read_text())
    changed = change(values["weight_map"])
    path.write_text(json.dumps({"weight_map": values["weight_map"] if changed is None else changed}))
    return folder


NORM = "model.norm.weight"
MALFORMED_INDEX: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "parent folder": (lambda m: m.update({NORM: "../model.safetensors"}), "not the name of a safetensors file"),
    "absolute": (lambda m: m.update({NORM: "/etc/x.safetensors"}), "not the name of a safetensors file"),
    "backslash": (lambda m: m.update({NORM: "..\\x.safetensors"}), "not the name of a safetensors file"),
    "pickle": (lambda m: m.update({NORM: "pytorch_model.bin"}), "not the name of a safetensors file"),
    "number": (lambda m: m.update({NORM: 3}), "not the name of a safetensors file"),
    "missing file": (lambda m: m.update(extra="x.safetensors"), "cannot be opened"),
    "null byte": (lambda m: m.update(extra="x\0.safetensors"), "cannot be opened"),
    "tensor in no file": (lambda m: m.update({"extra": m[NORM]}), "in none of its files"),
    "tensor not listed": (lambda m: m.pop(NORM) and None, "not where the index says"),
    "not an object": (lambda m: [1], "weight_map must be an object"),
    "2,000 files": (lambda m: {f"t{i}": f"{i}.safetensors" for i in range(2000)}, "2000 files"),
}


@pytest.mark.parametrize("name", MALFORMED_INDEX)
def test_index(tmp_path: Path, name: str) -> None:
    change, message = MALFORMED_INDEX[name]
    folder = change_index(sharded(tmp_path / "m"), change)
    assert message in refused(lambda path: open_model(ModelFiles("m", path, "folder")), folder)


# ---------------------------------------------------------------- JSON and things that are not files


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "must hold a JSON object"),
        (b"null", "must hold a JSON object"),
        (b'{"a":NaN}', "not valid JSON"),
        (b'{"a":1e999}', "not valid JSON"),
        (b'{"a":' + b"1" * 100_000 + b"}", "not valid JSON"),
        (b'{"a":"\xff"}', "not valid JSON"),
        (b'{"a":"\\ud800"}', "not valid JSON"),
        (b"\xff\xfe{\0}\0", "not valid JSON"),
        (b'{"a":' * 90_000, "nested too deeply"),
        (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", "nested more than 64 deep"),
        (b"[" + b"[]," * 100_000 + b"[]]", "more than"),
    ],
)
def test_json(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(data)
    assert message in refused(lambda p: read_json(p, 1 << 22, 64, 100_000), path)


def test_json_size_is_looked_at_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"{}")
    os.truncate(path, 1 << 40)
    assert "at most" in refused(read_json, path)


@pytest.mark.parametrize("depth", [1, 5, 64])
def test_depth_is_counted_in_brackets(depth: int) -> None:
    data = b"[" * depth + b"]" * depth
    parse_json(data, "x", max_depth=depth)
    with pytest.raises(InvalidModel):
        parse_json(data, "x", max_depth=depth - 1)


@pytest.mark.parametrize("opening", [open_gguf, open_safetensors, read_json, map_file])
def test_things_that_are_not_files(tmp_path: Path, opening: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name, message in [
            ("pipe", "not a regular file"), ("loop", "cannot be opened"), ("gone", "cannot be opened"),
            ("socket", "cannot be opened"), (".", "not a regular file"), ("a" * 300, "cannot be opened"),
            ("new\nline", "cannot be opened"),
        ]:  # fmt: skip
            assert message in refused(opening, tmp_path / name)
    assert "not a regular file" in refused(opening, Path("/dev/zero"))
    assert "not a regular file" in refused(opening, Path("/dev/random"))


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + PAD)
    for _ in range(20):
        refused(open_gguf, path)
        refused(open_gguf, tmp_path)
        refused(read_json, path)
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2
