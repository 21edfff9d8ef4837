"""Flags about chats: tools, thought, and what the chat template is told."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from chairlift.core.errors import InvalidOption

if TYPE_CHECKING:
    from chairlift.text import GivenTemplate

AUTO, NONE = "auto", "none"
TOOL_FORMATS = ("hermes", "llama3_json", "mistral", "openai", "json")
REASONING_FORMATS = ("qwen3", "deepseek_r1", "mistral", "openai_gptoss")
"""Names of formats, written down once more: those that read them take a tenth of a second to import."""


def add_template_flag(group: argparse._ActionsContainer) -> None:
    """Add the flag that takes the place of a model's own template."""
    group.add_argument(
        "--chat-template",
        type=chat_template,
        metavar="FILE",
        help="Jinja template that makes one text of a conversation, in a file or as it is (default: the model's own)",
    )


def add_chat_flags(group: argparse._ArgumentGroup) -> None:
    """Add them to a group of flags."""
    group.add_argument(
        "--tool-call-parser",
        choices=(AUTO, *TOOL_FORMATS, NONE),
        default=AUTO,
        help="how the model writes calls of functions; auto: what its chat template speaks of; json: told in words, "
        "with any model; none: no tools (default: %(default)s)",
    )
    group.add_argument(
        "--enable-auto-tool-choice",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="let the model decide whether it calls a function, where a request leaves that open (default: on)",
    )
    group.add_argument(
        "--reasoning-parser",
        choices=(AUTO, *REASONING_FORMATS, NONE),
        default=AUTO,
        help="how the model marks what it thinks, which is then apart from what it says; auto: as in its chat "
        "template; none: thought is content (default: %(default)s)",
    )
    group.add_argument(
        "--default-chat-template-kwargs",
        type=template_kwargs,
        default={},
        metavar="JSON",
        help="what the chat template is told where a request does not say, such as "
        '{"enable_thinking": false} (default: nothing)',
    )
    group.add_argument(
        "--enable-per-request-metrics",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="tell in each response how long it took; in a stream together with its usage (default: off)",
    )


def chat_template(text: str) -> GivenTemplate:
    """A chat template from a file, or given as it is.

    Raises:
        argparse.ArgumentTypeError: neither a file that can be read nor a template.
    """
    from chairlift.text import given_template

    try:
        return given_template(text)
    except InvalidOption as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def template_kwargs(text: str) -> dict[str, Any]:
    """Arguments of a chat template, as JSON.

    Raises:
        argparse.ArgumentTypeError: it is no JSON object.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value
