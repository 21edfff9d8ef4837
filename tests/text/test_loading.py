from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import InvalidModel, InvalidOption, InvalidRequest
from chairlift.models import ModelFiles, open_model, resolve
from chairlift.text import GivenTemplate, Text, given_template, load_text
from models.writers import tiny_llama
from text.templates import CHATML
from text.vocabularies import (
    byte_level_backend,
    byte_level_metadata,
    gguf_of,
    model_file,
    sentencepiece_metadata,
    with_beginning,
    write_tokenizer,
)

NAMES = {"bos_token": "<|begin|>", "eos_token": {"content": "</s>", "special": True}, "pad_token": None}
USER = [{"role": "user", "content": "Hi"}]


def folder_text(folder: Path, config: dict[str, Any] | None = None, **files: Any) -> Text:
    """The text of a folder with a tokenizer, this tokenizer_config.json, and further files by name."""
    write_tokenizer(folder, with_beginning(byte_level_backend(), "<|begin|>"), {**NAMES, **(config or {})})
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return load_text(ModelFiles("tiny", folder, "folder"))


def gguf_text(path: Path, **metadata: Any) -> Text:
    gguf_of(path, {**byte_level_metadata(byte_level_backend()), **metadata})
    return load_text(ModelFiles("tiny", path, "gguf"))


def test_the_default_model_loads_quickly_and_without_its_weights() -> None:
    """A server loads the text while a worker loads the model. The aim is 0.3 s; twice that, for busy machines."""
    files = resolve("smollm2-135m-instruct")
    start = time.thread_time()
    text = load_text(files)
    assert time.thread_time() - start < 0.6
    assert text.chat_template is not None
    assert text.eos_token_ids == text.tokenizer.eos_token_ids == (2,)


def test_loading_imports_no_executor() -> None:
    code = "import sys, chairlift.text; print([m for m in sys.modules if m.partition('.')[0] in ('openvino', 'torch')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_open_model_serves_as_well_as_its_files(tmp_path: Path) -> None:
    backend = byte_level_backend(vocab_size=300)
    tiny = tiny_llama(vocab_size=backend.get_vocab_size())
    path = tiny.write_gguf(tmp_path / "tiny.gguf", extra=byte_level_metadata(backend))
    files = ModelFiles("tiny", path, "gguf")
    opened, unopened = load_text(open_model(files)), load_text(files)
    assert opened.tokenizer.encode("the dog") == unopened.tokenizer.encode("the dog")
    assert opened.chat_template is None and unopened.chat_template is None


# ---------------------------------------------------------------- folders


def test_folder(tmp_path: Path) -> None:
    generation = {"eos_token_id": [3, 7], "temperature": 0.6, "top_p": 0.9, "max_new_tokens": 99}
    text = folder_text(tmp_path, {"chat_template": "{{ bos_token }}" + CHATML}, generation_config__json=generation)
    tokenizer = text.tokenizer
    assert tokenizer.special_text(tokenizer.bos_token_id) == "<|begin|>"
    assert [tokenizer.special_text(token) for token in text.eos_token_ids[2:]] == ["</s>"]
    assert text.eos_token_ids[:2] == (3, 7)
    assert text.sampling_defaults == {"temperature": 0.6, "top_p": 0.9, "max_tokens": 99}
    tokens = text.encode_chat(USER)
    assert tokens[0] == tokenizer.bos_token_id and tokens.count(tokens[0]) == 1
    assert tokenizer.encode("Hi")[0] == tokenizer.bos_token_id


def test_folder_without_anything_more(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, byte_level_backend())
    (tmp_path / "tokenizer_config.json").unlink()
    text = load_text(ModelFiles("tiny", tmp_path, "folder"))
    assert (text.chat_template, text.eos_token_ids, dict(text.sampling_defaults)) == (None, (), {})
    with pytest.raises(InvalidRequest, match="no chat template"):
        text.encode_chat(USER)


def test_named_templates_of_a_folder(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    template = folder_text(tmp_path, {"chat_template": named}).chat_template
    assert template is not None
    assert template.render(USER) == "plain"
    assert template.render(USER, tools=[{"type": "function", "function": {"name": "f"}}]) == "tools"


def test_a_template_file_goes_before_the_configuration(tmp_path: Path) -> None:
    template = folder_text(tmp_path, {"chat_template": "config"}, chat_template__jinja="file").chat_template
    assert template is not None
    assert template.render(USER) == "file"


def test_a_given_template_goes_before_all(tmp_path: Path) -> None:
    folder_text(tmp_path, {"chat_template": "config"}, chat_template__jinja="file")
    text = load_text(ModelFiles("tiny", tmp_path, "folder"), GivenTemplate("given {{ eos_token }}"))
    assert text.chat_template is not None
    assert text.chat_template.render(USER) == "given </s>"
    gguf = gguf_of(tmp_path / "x.gguf", {**byte_level_metadata(byte_level_backend()), "tokenizer.chat_template": "own"})
    text = load_text(ModelFiles("tiny", gguf, "gguf"), GivenTemplate("given"))
    assert text.chat_template is not None
    assert text.chat_template.render(USER) == "given"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"auto_map": {"AutoTokenizer": ["tokenization_x.Tokenizer", None]}}, "code of its own"),
    ],
)
def test_folders_that_are_wrong(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        folder_text(tmp_path, config)


def test_files_that_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="no tokenizer"):
        load_text(ModelFiles("tiny", tmp_path, "folder"))
    with pytest.raises(InvalidModel, match="JSON"):
        folder_text(tmp_path, tokenizer_config__json="{")
    with pytest.raises(InvalidModel, match="temperature"):
        folder_text(tmp_path, generation_config__json={"temperature": "hot"})


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"chat_template": 1}, "chat_template must be a string or named ones"),
        ({"chat_template": ["x"]}, "chat_template must be a string or named ones"),
        ({"chat_template": [{"name": "default"}]}, "chat_template must be a string or named ones"),
        ({"chat_template": "{{"}, "a chat template does not compile: unexpected 'end of template'"),
        (
            {"chat_template": "{{ ''.__class__ }}"},
            "a chat template does not compile: line 1: attribute '__class__' is private",
        ),
    ],
)
def test_a_template_that_cannot_be_used_refuses_chats_only(tmp_path: Path, config: dict[str, Any], reason: str) -> None:
    text = folder_text(tmp_path, config)
    assert text.chat_template is None and text.tokenizer.decode(text.tokenizer.encode("Hi")) == "Hi"
    with pytest.raises(InvalidRequest, match=f"^tokenizer_config.json: {reason}.*: use completions, or give"):
        text.encode_chat(USER)


def test_the_file_of_a_template_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """Without the folder that it lies in: clients are told too."""
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("{{")
    text = folder_text(tmp_path, chat_template__jinja="own")
    assert text.template_problem.startswith("chat_template.jinja: the chat template rag does not compile")
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_bytes(b"\xff")
    assert folder_text(tmp_path).template_problem == "additional_chat_templates/rag.jinja: not UTF-8"
    template = {"tokenizer.chat_template": "{% if %}"}
    assert gguf_text(tmp_path / "a.gguf", **template).template_problem.startswith("a.gguf: a chat template does not")
    (tmp_path / "given.jinja").write_text("{% if %}")
    for given, where in ((tmp_path / "given.jinja", "given.jinja"), ("{% if %}", "the chat template that was given")):
        with pytest.raises(InvalidOption, match=f"{where}: a chat template does not compile"):
            load_text(ModelFiles("tiny", tmp_path, "folder"), given_template(given))


def test_an_end_outside_the_vocabulary_is_none(tmp_path: Path) -> None:
    """Configs of small models often keep the ends of large ones."""
    ends = folder_text(tmp_path, generation_config__json={"eos_token_id": [10**6, 3]}).eos_token_ids
    assert ends[0] == 3 and 10**6 not in ends


# ---------------------------------------------------------------- GGUF


def test_gguf_names_its_special_tokens_to_the_template(tmp_path: Path) -> None:
    ids = {"tokenizer.ggml.bos_token_id": 472, "tokenizer.ggml.eos_token_id": 470}
    text = gguf_text(tmp_path / "a.gguf", **ids, **{"tokenizer.chat_template": "{{ bos_token }}|{{ eos_token }}"})
    assert text.chat_template is not None
    tokenizer = text.tokenizer
    assert text.chat_template.render(USER) == f"{tokenizer.special_text(472)}|{tokenizer.special_text(470)}"
    assert text.eos_token_ids == (470,)
    assert text.encode_chat(USER) == [472, *tokenizer.encode("|"), 470]


def test_gguf_templates_by_name(tmp_path: Path) -> None:
    templates = {
        "tokenizer.chat_template": "plain",
        "tokenizer.chat_templates": ["tool_use", "rag"],
        "tokenizer.chat_template.tool_use": "tools",
    }
    template = gguf_text(tmp_path / "a.gguf", **templates).chat_template
    assert template is not None
    assert template.render(USER, tools=[{"type": "function", "function": {"name": "f"}}]) == "tools"


def test_the_end_of_a_turn_ends_an_answer(tmp_path: Path) -> None:
    """Files made of a base model and given a template later name only the end of the text."""
    backend = byte_level_backend(specials=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>"])
    end, turn = backend.token_to_id("<|endoftext|>"), backend.token_to_id("<|im_end|>")
    metadata = byte_level_metadata(backend, eos_token_id=end)
    for template, expected in (("<|im_start|>x<|im_end|>", (end, turn)), ("x", (end,))):
        path = gguf_of(tmp_path / "a.gguf", {**metadata, "tokenizer.chat_template": template})
        assert load_text(ModelFiles("a", path, "gguf")).eos_token_ids == expected
    path = gguf_of(tmp_path / "a.gguf", {**metadata, "tokenizer.ggml.eot_token_id": turn})
    assert load_text(ModelFiles("a", path, "gguf")).eos_token_ids == (end, turn)


def test_gguf_of_sentencepiece(tmp_path: Path) -> None:
    metadata = {**sentencepiece_metadata(), "tokenizer.chat_template": "{{ bos_token }}" + CHATML}
    text = load_text(ModelFiles("a", gguf_of(tmp_path / "a.gguf", metadata), "gguf"))
    tokens = text.encode_chat(USER)
    assert tokens[0] == 1
    assert text.tokenizer.decode(tokens, skip_special_tokens=False).startswith("<s><|turn|>")


# ---------------------------------------------------------------- threads


def test_many_threads_share_a_template() -> None:
    """Requests that render at the same time, each with its own meter."""
    text = load_text(resolve("smollm2-135m-instruct"))
    conversations = [[{"role": "user", "content": f"question {number} <|im_end|>" * number}] for number in range(32)]
    expected = [text.encode_chat(conversation) for conversation in conversations]
    fresh = load_text(resolve("smollm2-135m-instruct"))
    failures: list[object] = []
    gate = threading.Barrier(32)

    def work(number: int) -> None:
        gate.wait()
        try:
            for turn in range(5):
                index = (number + turn) % 32
                if fresh.encode_chat(conversations[index]) != expected[index]:
                    failures.append(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# ---------------------------------------------------------------- what files say besides


def test_templates_beside_the_main_one(tmp_path: Path) -> None:
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    template = folder_text(tmp_path, chat_template__jinja="plain").chat_template
    assert template is not None
    assert template.render(USER) == "plain"
    assert template.render(USER, tools=[{"type": "function", "function": {"name": "f"}}]) == "tools"


def test_the_template_of_a_model_that_also_sees(tmp_path: Path) -> None:
    template = folder_text(tmp_path, chat_template__json={"chat_template": "seen"}).chat_template
    assert template is not None
    assert template.render(USER) == "seen"


def test_special_tokens_of_older_folders(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, byte_level_backend(), {"eos_token": "<|end|>"})
    names = {"bos_token": {"content": "<|begin|>"}, "eos_token": "</s>", "additional_special_tokens": ["<s>"]}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(names))
    template = "{{ bos_token }}{{ eos_token }}"
    text = load_text(ModelFiles("tiny", tmp_path, "folder"), GivenTemplate(template))
    assert text.chat_template is not None
    assert text.chat_template.render(USER) == "<|begin|><|end|>"
    assert text.tokenizer.special_text(text.tokenizer.bos_token_id) == "<|begin|>"


def test_without_generation_config_the_ends_are_those_of_the_config(tmp_path: Path) -> None:
    ends = folder_text(tmp_path, config__json={"eos_token_id": [3, 7]}).eos_token_ids
    assert ends[:2] == (3, 7)
    ends = folder_text(
        tmp_path, config__json={"eos_token_id": 3}, generation_config__json={"eos_token_id": 5}
    ).eos_token_ids
    assert ends[0] == 5 and 3 not in ends


def test_sampling_that_a_gguf_file_recommends(tmp_path: Path) -> None:
    values = {"temp": 0.5, "top_k": 20, "min_p": 0.25, "penalty_repeat": 1.5}
    keys = {f"general.sampling.{key}": value for key, value in values.items()}
    sampling = gguf_text(tmp_path / "a.gguf", **keys).sampling_defaults
    assert sampling == {"temperature": 0.5, "top_k": 20, "min_p": 0.25, "repetition_penalty": 1.5}
    with pytest.raises(InvalidModel, match="sampling"):
        gguf_text(tmp_path / "a.gguf", **{"general.sampling.temp": -1.0})


def test_a_turn_of_several_messages_does_not_end_with_the_first(tmp_path: Path) -> None:
    backend = byte_level_backend(specials=["<|return|>", "<|end|>", "<|call|>", "<|start|>"])
    end, returned, called = (backend.token_to_id(text) for text in ("<|end|>", "<|return|>", "<|call|>"))
    metadata = byte_level_metadata(backend, eos_token_id=returned, eot_token_id=end)
    path = gguf_of(tmp_path / "a.gguf", {**metadata, "tokenizer.chat_template": "<|start|>x<|end|>"})
    assert load_text(ModelFiles("a", path, "gguf")).eos_token_ids == (returned, called)


def test_a_folder_with_a_sentencepiece_model_only(tmp_path: Path) -> None:
    model_file(tmp_path, "llama").rename(tmp_path / "tokenizer.model")
    text = load_text(ModelFiles("tiny", tmp_path, "folder"), GivenTemplate("{{ bos_token }}{{ messages[0].content }}"))
    assert text.eos_token_ids == (2,)
    assert text.tokenizer.decode(text.tokenizer.encode("the dog")) == "the dog"
    assert text.encode_chat(USER) == text.tokenizer.encode("Hi", add_special_tokens=False)
