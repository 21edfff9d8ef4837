"""Hundreds of damaged model files: each opens or is refused with one line, quickly, without eating memory.

The bar (500 per format; a fifth of them by default): no signal, at most 5 s, and a peak of resident memory at most
twice the file plus 64 MiB above what there was.
"""

import json
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pytest

from chairlift.core.errors import InvalidModel
from chairlift.executors.openvino.choice import choose_weights
from chairlift.executors.openvino.options import AskedDtype
from chairlift.executors.openvino.quantizing import quantize_model
from chairlift.models import ModelFiles, open_model, to_bfloat16, to_float32, to_int4, to_int8
from chairlift.models.prepared import MARK, METADATA, WEIGHTS
from models.block_writers import ENCODERS
from models.quantized_folders import KINDS, quantized_folder
from models.writers import encode, tiny_llama, write_gguf

NUMBERS = [0, 1, 2, 3, 31, 33, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1]
MAX_SECONDS = 5.0


@dataclass
class Outcome:
    opened: bool
    line: str
    seconds: float
    extra_bytes: int


def use_everything(files: ModelFiles) -> None:
    """Open a model and read all there is to read of it."""
    model = open_model(files)
    model.config.rope.inv_freq()
    for name in model.weights.names:
        tensor = model.weights.tensor(name)
        to_float32(tensor)
        to_bfloat16(tensor)
        for group in (16, 64):
            to_int8(tensor, group=group)
            to_int4(tensor, group=group)
    if model.gguf is not None:
        for key in model.gguf.keys:
            for read in (model.gguf.strings, model.gguf.numbers, model.gguf.text):
                try:
                    read(key)
                except InvalidModel as error:
                    assert str(error).isprintable()


def resident_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise ValueError(field)


def attempt(files: ModelFiles) -> Outcome:
    Path("/proc/self/clear_refs").write_text("5")
    before = resident_bytes("VmRSS")
    begun = time.process_time()
    line = ""
    try:
        use_everything(files)
    except InvalidModel as error:
        line = str(error)
    return Outcome(not line, line, time.process_time() - begun, resident_bytes("VmHWM") - before)


def check(outcome: Outcome, file_bytes: int) -> None:
    assert outcome.opened or (outcome.line.isprintable() and len(outcome.line) < 500), outcome
    assert outcome.seconds < MAX_SECONDS, outcome
    assert outcome.extra_bytes <= 2 * file_bytes + (64 << 20), outcome


# ---------------------------------------------------------------- mutations


def flip(data: bytearray, rng: Random, header_bytes: int) -> None:
    for _ in range(rng.choice([1, 1, 2, 8])):
        data[rng.randrange(header_bytes)] = rng.randrange(256)


def number(data: bytearray, rng: Random, header_bytes: int) -> None:
    """An interesting number written over any place, as 4 or 8 bytes."""
    form, limit = rng.choice([("<I", 2**32), ("<Q", 2**64)])
    value = struct.pack(form, rng.choice([n for n in NUMBERS if n < limit]))
    place = rng.randrange(max(1, header_bytes - 8))
    data[place : place + len(value)] = value


def remove(data: bytearray, rng: Random, header_bytes: int) -> None:
    place = rng.randrange(header_bytes)
    del data[place : place + rng.choice([1, 4, 8, 100])]


def insert(data: bytearray, rng: Random, header_bytes: int) -> None:
    place = rng.randrange(header_bytes)
    data[place:place] = rng.randbytes(rng.choice([1, 4, 8, 100]))


def repeat(data: bytearray, rng: Random, header_bytes: int) -> None:
    place = rng.randrange(header_bytes)
    data[place:place] = data[place : place + rng.choice([8, 40, 200])]


def anywhere(data: bytearray, rng: Random, header_bytes: int) -> None:
    for _ in range(20):
        data[rng.randrange(len(data))] = rng.choice([0x00, 0x7C, 0x7F, 0x80, 0xFC, 0xFF])


MUTATIONS: list[Callable[[bytearray, Random, int], None]] = [flip, number, number, remove, insert, repeat, anywhere]


def mutants(data: bytes, header_bytes: int, count: int) -> Iterator[bytes]:
    """Truncations at every 1 %, then random damage, mostly to the header; the same for every run."""
    for percent in range(0, 100, max(1, 200 // count)):
        yield data[: len(data) * percent // 100]
    for seed in range(count):
        rng = Random(seed)
        mutant = bytearray(data)
        rng.choice(MUTATIONS)(mutant, rng, header_bytes)
        yield bytes(mutant)


COUNTS = [pytest.param(100, id="quick"), pytest.param(500, id="all", marks=pytest.mark.long)]


def run(files: ModelFiles, damaged: Path, count: int, header_bytes: int) -> int:
    """Put every mutant in the place of `damaged`; how many were refused."""
    data = damaged.read_bytes()
    use_everything(files)
    num_refused = 0
    for mutant in mutants(data, header_bytes, count):
        damaged.write_bytes(mutant)
        outcome = attempt(files)
        check(outcome, len(mutant))
        num_refused += not outcome.opened
    return num_refused


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("encoding", ["Q4_1", "F16"])
def test_gguf_mutants(tmp_path: Path, count: int, encoding: str) -> None:
    tiny = tiny_llama(0, num_layers=1, hidden_size=32, head_size=8, intermediate_size=32)
    path = tiny.write_gguf(tmp_path / "m.gguf", encoding)
    header_bytes = path.read_bytes().rindex(b".weight") + 40
    assert run(ModelFiles("m", path, "gguf"), path, count, header_bytes) > count // 2


FEW = [pytest.param(4, id="few"), pytest.param(500, id="all", marks=pytest.mark.long)]
"""For formats of which only the numbers differ."""


@pytest.mark.parametrize("count", FEW)
@pytest.mark.parametrize("encoding", sorted(ENCODERS))
def test_gguf_mutants_of_every_type(tmp_path: Path, count: int, encoding: str) -> None:
    tiny = tiny_llama(
        0,
        num_layers=1,
        hidden_size=256,
        num_heads=1,
        num_kv_heads=1,
        head_size=256,
        intermediate_size=256,
        vocab_size=8,
    )
    path = tiny.write_gguf(tmp_path / "m.gguf", encoding)
    header_bytes = path.read_bytes().rindex(b".weight") + 40
    assert run(ModelFiles("m", path, "gguf"), path, count, header_bytes) > count // 3


@pytest.mark.parametrize("count", FEW)
@pytest.mark.parametrize("part", [1, 2])
def test_mutants_of_a_split_file(tmp_path: Path, count: int, part: int) -> None:
    tiny = tiny_llama(0, num_layers=1, hidden_size=32, head_size=8, intermediate_size=32)
    head = {"output.weight": encode(tiny.weights.pop("lm_head.weight"), "Q4_0")}
    first = tiny.write_gguf(tmp_path / "m-00001-of-00002.gguf", "Q4_0", {"split.no": 0, "split.count": 2})
    second = write_gguf(tmp_path / "m-00002-of-00002.gguf", {"split.no": 1, "split.count": 2}, head)
    damaged = (first, second)[part - 1]
    header_bytes = damaged.read_bytes().rindex(b".weight") + 40
    assert run(ModelFiles("m", first, "gguf"), damaged, count, header_bytes) > count // 3


@pytest.mark.parametrize("count", FEW)
@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("kind", KINDS)
def test_mutants_of_checkpoints_quantised_for_others(tmp_path: Path, count: int, kind: str, file: str) -> None:
    quantized_folder(tiny_llama(0, num_layers=1), kind, tmp_path)
    path = tmp_path / file
    data = path.read_bytes()
    header_bytes = len(data) if file == "config.json" else 8 + int.from_bytes(data[:8], "little")
    assert run(ModelFiles("m", tmp_path, "folder"), path, count, header_bytes) > count // 4


@pytest.mark.parametrize("count", FEW)
@pytest.mark.parametrize("file", [MARK, WEIGHTS, METADATA])
@pytest.mark.parametrize("dtype", ["int8", "int4", "auto"])
def test_mutants_of_folders_that_quantize_wrote(tmp_path: Path, count: int, dtype: AskedDtype, file: str) -> None:
    tiny = tiny_llama(0, num_layers=1, hidden_size=32, head_size=8, intermediate_size=32)
    model = open_model(ModelFiles("m", tiny.write_gguf(tmp_path / "m.gguf", "Q4_1"), "gguf"))
    quantize_model(model, choose_weights(model, dtype), tmp_path / "out")
    path = tmp_path / "out" / file
    data = path.read_bytes()
    header_bytes = {MARK: len(data), WEIGHTS: 8 + int.from_bytes(data[:8], "little")}.get(file)
    header_bytes = header_bytes or data.rindex(b".weight") + 40
    assert run(ModelFiles("m", tmp_path / "out", "folder"), path, count, header_bytes) > count // 4


@pytest.mark.parametrize("count", COUNTS)
def test_safetensors_mutants(tmp_path: Path, count: int) -> None:
    folder = tiny_llama(0, num_layers=1).write_folder(tmp_path / "m", "BF16")
    path = folder / "model.safetensors"
    header_bytes = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    assert run(ModelFiles("m", folder, "folder"), path, count, header_bytes) > count // 2


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("file", ["config.json", "model.safetensors.index.json", "generation_config.json"])
def test_json_mutants(tmp_path: Path, count: int, file: str) -> None:
    folder = tiny_llama(0, num_layers=1, rope_scaling={"rope_type": "linear", "factor": 2.0}).write_folder(
        tmp_path / "m", "BF16", num_shards=2
    )
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 3], "temperature": 0.5, "top_k": 4}))
    path = folder / file
    assert run(ModelFiles("m", folder, "folder"), path, count, path.stat().st_size) > count // 3


# ---------------------------------------------------------------- built to hurt


def hostile_gguf(kind: str) -> bytes:
    """Well-formed headers as large as the bounds allow, or just beyond."""
    head = b"GGUF" + struct.pack("<I", 3)
    match kind:
        case "strings":
            return head + struct.pack("<QQQ", 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 8, 1 << 20) + bytes(8 << 20)
        case "too many strings":
            return head + struct.pack("<QQQ", 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 8, 2 << 20) + bytes(16 << 20)
        case "short strings":
            text = struct.pack("<Q", 2) + b"\xc3\xa9"
            return head + struct.pack("<QQQ", 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 8, 1 << 20) + text * (1 << 20)
        case "wide text":
            wide = ("x" * (1 << 20) + "\U0001f600").encode()
            value = struct.pack("<IQ", 8, len(wide)) + wide
            keys = b"".join(struct.pack("<Q", 1) + bytes([97 + i]) + value for i in range(8))
            return head + struct.pack("<QQ", 0, 8) + keys
        case "tensors":
            infos = [struct.pack("<Q", 8) + b"%08d" % i + struct.pack("<IQIQ", 1, 8, 0, 32 * i) for i in range(1 << 15)]
            return head + struct.pack("<QQ", 1 << 15, 0) + b"".join(infos) + bytes(32 << 15)
        case "keys":
            keys = b"".join(struct.pack("<Q", 8) + b"%08d" % i + struct.pack("<II", 4, 1) for i in range(1 << 14))
            return head + struct.pack("<QQ", 0, 1 << 14) + keys
    raise ValueError(kind)


@pytest.mark.parametrize("kind", ["strings", "too many strings", "short strings", "wide text", "tensors", "keys"])
def test_hostile_gguf(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(hostile_gguf(kind))
    outcome = attempt(ModelFiles("m", path, "gguf"))
    assert not outcome.opened
    check(outcome, path.stat().st_size)


def hostile_json(kind: str) -> bytes:
    match kind:
        case "lists":
            return b'{"a":[' + b"[]," * 340_000 + b"[]]}"
        case "objects":
            return b'{"a":[' + b"{}," * 340_000 + b"{}]}"
        case "keys":
            return b"{" + b",".join(b'"%d":0' % i for i in range(60_000)) + b"}"
        case "numbers":
            return b'{"a":[' + b"0," * 500_000 + b"0]}"
        case "wide":
            return ('{"a":"' + "x" * 1_000_000 + '\U0001f600"}').encode()
    raise ValueError(kind)


@pytest.mark.parametrize("kind", ["lists", "objects", "keys", "numbers", "wide"])
@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_hostile_json(tmp_path: Path, kind: str, file: str) -> None:
    folder = tiny_llama(0, num_layers=1).write_folder(tmp_path / "m")
    data = hostile_json(kind)
    (folder / file).write_bytes(data if file == "config.json" else struct.pack("<Q", len(data)) + data)
    outcome = attempt(ModelFiles("m", folder, "folder"))
    assert not outcome.opened
    check(outcome, len(data))


def test_the_measure_sees_memory() -> None:
    """What the bar rests on: a large array shows in the peak even after it is gone."""
    Path("/proc/self/clear_refs").write_text("5")
    before = resident_bytes("VmRSS")
    np.ones(16 << 20)
    assert resident_bytes("VmHWM") - before > 100 << 20
