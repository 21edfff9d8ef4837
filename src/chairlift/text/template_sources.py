"""Where a model's chat template comes from: its own files, or one that was given instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from chairlift.core.errors import InvalidModel, InvalidOption
from chairlift.models import GGUF, read_json
from chairlift.models.files import read_bytes, shown
from chairlift.text.chat import DEFAULT_TEMPLATE, MAX_TEMPLATE_CHARS, ChatTemplate

MAX_CONFIG_BYTES = 16 << 20
"""A tokenizer_config.json lists every added token once more, at some 200 bytes each."""
MAX_TEMPLATES = 16
MAX_GIVEN_BYTES = 1 << 20

Templates = tuple[str, Mapping[str, str]]
"""The name of the file they are in, and chat templates by name."""


@dataclass(frozen=True, slots=True)
class GivenTemplate:
    """A chat template in the place of a model's own, and where it was found."""

    source: str
    where: str = "the chat template that was given"


def given_template(given: str | PathLike[str]) -> GivenTemplate:
    """A template as it is, or the file that it is in, which may be a pipe that a shell gives as one.

    Raises:
        InvalidOption: neither a template nor a file that can be read.
    """
    text = fspath(given)
    if "{{" in text or "{%" in text:
        return GivenTemplate(text)
    try:
        with Path(text).open("rb") as file:
            data = file.read(MAX_GIVEN_BYTES + 1)
        if len(data) > MAX_GIVEN_BYTES:
            raise InvalidOption(f"chat template {shown(text)}: more than {MAX_GIVEN_BYTES} bytes")
        return GivenTemplate(data.decode(), shown(text))
    except OSError as error:
        reason = f"neither a template nor a file that can be read: {error.strerror}"
        raise InvalidOption(f"chat template {shown(text)}: {reason}") from error
    except ValueError as error:
        raise InvalidOption(f"chat template {shown(text)}: cannot be read: {shown(error)}") from error


def template_of(
    own: Callable[[], Templates], special_texts: Mapping[str, str], given: GivenTemplate | None, folder: Path
) -> tuple[ChatTemplate | None, str]:
    """The chat template, if there is one; or what is wrong with the model's own, which only chats need.

    Whoever asks over a network is told the reason too: files are named as they are called in `folder`.

    Raises:
        InvalidOption: the template that was given cannot be used.
    """
    if given is not None:
        try:
            return ChatTemplate(given.source, special_texts), ""
        except InvalidModel as error:
            raise InvalidOption(f"{given.where}: {error}") from error
    try:
        where, sources = own()
    except InvalidModel as error:
        return None, str(error).replace(f"{folder}/", "")
    try:
        return ChatTemplate(sources, special_texts) if sources else None, ""
    except InvalidModel as error:
        return None, f"{shown(where)}: {error}"


def gguf_templates(gguf: GGUF) -> Templates:
    """A file may have some for particular uses beside its own."""
    key = "tokenizer.chat_template"
    if not gguf.has(key):
        return gguf.path.name, {}
    others = gguf.strings("tokenizer.chat_templates") if gguf.has("tokenizer.chat_templates") else []
    named = {name: gguf.text(f"{key}.{name}") for name in others if gguf.has(f"{key}.{name}")}
    return gguf.path.name, {DEFAULT_TEMPLATE: gguf.text(key)} | named


def folder_templates(folder: Path, config: Mapping[str, Any]) -> Templates:
    """They lie in `chat_template.jinja` and, for particular uses, in files beside it; else in `tokenizer_config.json`;
    else, with models that also see, in `chat_template.json`.
    """
    path = folder / "chat_template.jinja"
    if path.exists():
        others = sorted((folder / "additional_chat_templates").glob("*.jinja"))[:MAX_TEMPLATES]
        named = {DEFAULT_TEMPLATE: _read_template(path)} | {other.stem: _read_template(other) for other in others}
        return path.name, named
    name, value = "tokenizer_config.json", config.get("chat_template")
    if value is None and (folder / "chat_template.json").exists():
        name = "chat_template.json"
        value = read_json(folder / name, MAX_CONFIG_BYTES).get("chat_template")
    if value is None:
        return name, {}
    if isinstance(value, str):
        return name, {DEFAULT_TEMPLATE: value}
    templates = {}
    for item in value if isinstance(value, list) else [None]:
        use, source = (item.get("name"), item.get("template")) if isinstance(item, dict) else (None, None)
        if not isinstance(use, str) or not isinstance(source, str):
            raise InvalidModel(f"{name}: chat_template must be a string or named ones")
        templates[use] = source
    return name, templates


def _read_template(path: Path) -> str:
    try:
        return read_bytes(path, 4 * MAX_TEMPLATE_CHARS).decode()
    except UnicodeDecodeError as error:
        raise InvalidModel(f"{shown(path)}: not UTF-8") from error
