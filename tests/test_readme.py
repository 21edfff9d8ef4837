"""What the README says to type is what there is."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from pathlib import Path

import msgspec
import pytest

from chairlift.cli.batch import check_requests
from chairlift.cli.main import _parser, parse
from chairlift.core.explain import sentence
from chairlift.core.types import Decisions, Finish, FinishReason, WaitReason
from chairlift.server.admin import LimitsBody
from chairlift.server.greeting import greeting

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines() if line.startswith("chairlift ")]


@pytest.mark.parametrize("command", commands())
def test_commands_are_understood(command: str) -> None:
    arguments = shlex.split(command, comments=True)[1:]
    if arguments[-1] == "--help":
        arguments.pop()
    assert callable(parse(arguments, {}).run)


def test_every_flag_is_one_that_there_is() -> None:
    parsers, known = [_parser()], set[str]()
    while parsers:
        for action in parsers.pop()._actions:
            known.update(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                parsers.extend(action.choices.values())
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", README))
    assert len(named) > 25
    assert named <= known | {"--no-deps"}  # of pip


def test_the_explanation_is_one_that_the_server_gives() -> None:
    waited = (WaitReason.STEP, 0.062), (WaitReason.SLOTS, 2.1)
    finish = Finish(
        1, 0, FinishReason.LENGTH, None, None, 12, 40, 0, 0, 0.0, 2.16, 2.2, 3.6,
        Decisions(queued_behind=3, waited=waited, chunks=1),
    )  # fmt: skip
    (example,) = blocks("text")
    assert example == f"{sentence(finish)}\n"


def test_the_owner_s_change_of_limits_is_one() -> None:
    (change,) = re.findall(r"-X PATCH -d '(.*)'$", README, re.MULTILINE)
    assert json.loads(change).keys() <= set(LimitsBody.__struct_fields__)
    msgspec.json.decode(change, type=LimitsBody)


def test_the_batch_line_is_a_request(tmp_path: Path) -> None:
    (example,) = blocks("json")
    file = tmp_path / "batch.jsonl"
    file.write_text(example, encoding="utf-8")
    assert check_requests(file) == {"greeting"}


def test_the_first_request_is_the_one_that_the_server_suggests() -> None:
    said = greeting(
        "http://127.0.0.1:8000",
        "smollm2-135m-instruct",
        max_model_len=8192,
        load_s=4.0,
        resident_bytes=0,
        needs_key=False,
    )
    curl, python = blocks("sh")[1], blocks("python")[0]
    assert shlex.split(curl.replace("\\\n", "")) == shlex.split(said[said.index("curl") : said.index("or from")])
    indented = "".join(f"  {line}" if line.strip() else line for line in python.splitlines(keepends=True))
    assert indented in said
