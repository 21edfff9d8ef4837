"""Everything about a model's text, loaded from its files without touching a weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chairlift.core.errors import InvalidModel, InvalidRequest
from chairlift.models import GGUF, Model, ModelFiles, open_gguf, read_json
from chairlift.models.files import shown
from chairlift.models.generation import generation_defaults, gguf_sampling
from chairlift.models.prepared import METADATA, open_metadata, read_prepared
from chairlift.text.byte_pairs import MERGES, VOCABULARY, byte_pair_tokenizer
from chairlift.text.chat import ChatTemplate, Messages, Tools
from chairlift.text.gguf_tokenizer import gguf_tokenizer
from chairlift.text.hf_tokenizer import HINT, SPECIAL_NAMES, hf_tokenizer, special_texts
from chairlift.text.sentencepiece_model import sentencepiece_tokenizer
from chairlift.text.template_sources import (
    MAX_CONFIG_BYTES,
    GivenTemplate,
    folder_templates,
    gguf_templates,
    template_of,
)
from chairlift.text.tokenizer import Tokenizer

_GGUF_NAMES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


@dataclass(frozen=True, slots=True)
class Text:
    """How a model's tokens and text relate. Any of `eos_token_ids` ends a sequence.

    `sampling_defaults` are what its makers recommend, by the names of `SamplingParams`. `template_problem` is why the
    model's own chat template cannot be used.
    """

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    eos_token_ids: tuple[int, ...]
    sampling_defaults: Mapping[str, float | int]
    template_problem: str = ""

    @property
    def lacking(self) -> str:
        """What a chat is told where there is no template for it."""
        return self.template_problem or "the model has no chat template"

    def encode_chat(
        self,
        messages: Messages,
        *,
        add_generation_prompt: bool = True,
        tools: Tools | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The tokens of a conversation.

        Raises:
            InvalidRequest: the model has no chat template, the messages are malformed, or the template refuses them.
        """
        if self.chat_template is None:
            raise InvalidRequest(
                f"{self.lacking}: use completions, or give a template (--chat-template, chat_template)"
            )
        return self.chat_template.render_tokens(
            messages,
            tokenizer=self.tokenizer,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            kwargs=kwargs,
        )


def load_text(source: Model | ModelFiles, chat_template: GivenTemplate | None = None) -> Text:
    """Load the tokenizer, and the chat template unless `chat_template` is given instead.

    A chat template of the model's own that cannot be used is no reason not to continue texts with it.

    Raises:
        InvalidModel: a file is missing, malformed, or of a kind that is not supported.
        InvalidOption: the given template cannot be used.
    """
    files = source.files if isinstance(source, Model) else source
    gguf = source.gguf if isinstance(source, Model) else None
    if files.kind == "gguf":
        return _from_gguf(gguf or open_gguf(files.path), files.sampling_defaults, chat_template)
    prepared = read_prepared(files.path)
    if prepared is not None and (files.path / METADATA).exists():
        return _from_gguf(gguf or open_metadata(files.path, prepared), prepared.sampling_defaults, chat_template)
    return _from_folder(files.path, chat_template)


def _from_gguf(gguf: GGUF, sampling: Mapping[str, float | int], given: GivenTemplate | None) -> Text:
    tokenizer = gguf_tokenizer(gguf)
    texts = {}
    for key, name in _GGUF_NAMES.items():
        if gguf.has(f"tokenizer.ggml.{key}_token_id"):
            token = gguf.integer(f"tokenizer.ggml.{key}_token_id")
            texts[name] = tokenizer.special_text(token) or tokenizer.token_text(token)
    template, problem = template_of(lambda: gguf_templates(gguf), texts, given, gguf.path.parent)
    return Text(tokenizer, template, tokenizer.eos_token_ids, {**gguf_sampling(gguf), **sampling}, problem)


def _from_folder(folder: Path, given: GivenTemplate | None) -> Text:
    named = _optional_json(folder / "special_tokens_map.json")  # older folders name special tokens here only
    config = {name: named[name] for name in (*SPECIAL_NAMES, "additional_special_tokens") if name in named}
    config |= _optional_json(folder / "tokenizer_config.json")
    if config.get("auto_map") is not None:
        raise InvalidModel(f"{shown(folder)}: the tokenizer needs code of its own, which is never run")
    where, generation_path = shown(folder), folder / "generation_config.json"
    ends, sampling = generation_defaults(_optional_json(generation_path), shown(generation_path))
    if not generation_path.exists():
        ends, _ = generation_defaults(
            {"eos_token_id": _optional_json(folder / "config.json").get("eos_token_id")}, where
        )
    if (path := folder / "tokenizer.json").exists():
        tokenizer = hf_tokenizer(path, config, ends)
    elif (path := folder / "tokenizer.model").exists():
        tokenizer = sentencepiece_tokenizer(path, config, ends)
    elif (folder / VOCABULARY).exists() and (folder / MERGES).exists():
        model_type = _optional_json(folder / "config.json").get("model_type")
        tokenizer = byte_pair_tokenizer(folder, config, model_type, ends)
    else:
        raise InvalidModel(f"{where}: no tokenizer.json, no tokenizer.model, no {VOCABULARY} with {MERGES}; {HINT}")
    template, problem = template_of(lambda: folder_templates(folder, config), special_texts(config), given, folder)
    return Text(tokenizer, template, tokenizer.eos_token_ids, sampling, problem)


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path, MAX_CONFIG_BYTES) if path.exists() else {}
