"""Everything that shipped chat templates use of their language, in the sandbox."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.text.chat import ChatTemplate

KEPT: dict[str, Any] = json.loads((Path(__file__).parent / "template_features.json").read_text())
"""Short templates by name, and what transformers makes of them."""


@pytest.mark.parametrize("name", sorted(KEPT["features"]))
def test_features_do_what_transformers_does(name: str) -> None:
    feature = KEPT["features"][name]
    template = ChatTemplate(feature["template"], {"bos_token": "<s>"}, now=lambda: datetime(2026, 3, 4))
    rendered = template.render(KEPT["messages"], tools=KEPT["tools"], kwargs={"enable_thinking": False})
    assert rendered == feature["output"]


CALLS = (
    "{% for m in messages %}{{ m.role }}{% for call in m.tool_calls or [] %}"
    "{{ call.function.name ~ ' ' ~ ARGUMENTS }}{% endfor %};{% endfor %}"
)


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ("(call.function.arguments | tojson)", '{"x": "é"}'),
        ("call.function.arguments", '{"x": "é"}'),
        ("('```json' + call['function']['arguments'] + '```')", '```json{"x": "é"}```'),
        ("(call.function.arguments.items() | list | length)", "1"),
        (
            "(call.function.arguments if call.function.arguments is string else call.function.arguments | tojson)",
            '{"x": "é"}',
        ),
    ],
)
def test_arguments_are_written_whichever_way_a_template_takes_them(arguments: str, written: str) -> None:
    """Most write an object as JSON; some join it to other text, and expect the JSON that the model wrote."""
    template = ChatTemplate(CALLS.replace("ARGUMENTS", arguments))
    function = {"name": "f", "arguments": json.dumps({"x": "é"})}
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]},
    ]
    assert template.render(turns) == f"user;assistantf {written};"


@pytest.mark.parametrize(
    ("source", "written"),
    [
        ("{{ tools | tojson }}", '[{"type": "function", "function": {"name": "f"}}]'),
        ("{% for t in tools %}{{ t.function.name + t.function.description }}{% endfor %}", "f"),
        ("{% for t in tools %}{{ t.function.parameters.properties | tojson }}{% endfor %}", "{}"),
    ],
)
def test_what_a_tool_leaves_out_is_added_where_a_template_needs_it(source: str, written: str) -> None:
    template = ChatTemplate(source)
    tools: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f"}}]
    assert template.render([{"role": "user", "content": "a"}], tools=tools) == written
    full = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"x": {}}}}
    rendered = template.render([{"role": "user", "content": "a"}], tools=[{"type": "function", "function": full}])
    assert '"x"' in rendered or rendered == "fd"


def test_sums_are_of_numbers_and_formats_are_bounded() -> None:
    user = [{"role": "user", "content": "a"}]
    for source in ("{{ [[1], [2]] | sum(start=[]) }}", "{{ ['a'] | sum }}", "{{ '%9999d' | format(1) }}"):
        template = "{% if messages | length > 1 %}" + source + "{% endif %}"
        with pytest.raises(InvalidRequest):
            ChatTemplate(template).render(user * 2)
    assert ChatTemplate("{{ [{'a': 1}, {'a': 2}] | sum('a') }}{{ [1, 1].count(1) }}").render(user) == "32"
