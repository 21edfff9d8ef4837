"""The form of an answer that must be calls of functions: a grammar around the schemas of their arguments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from chairlift.core.errors import InvalidRequest
from chairlift.core.structured import StructuredOutputs
from chairlift.server.errors import bad_request
from chairlift.server.protocol import Function
from chairlift.text.grammars import literal
from chairlift.text.tools import CallSpelling, ToolFormat


def forced_calls(form: ToolFormat, functions: Sequence[Function], max_calls: int | None) -> StructuredOutputs:
    """Calls of some of `functions`, written as `form` has it: one, or at least one.

    Raises:
        ApiError: 400, the schemas are too large.
    """
    spelling = form.spelling
    if spelling is None:
        raise ValueError(f"calls cannot be forced in the format {form.name}")
    rules = [_start(spelling, max_calls), f"call: {' | '.join(f'call_{i}' for i in range(len(functions)))}"]
    for index, function in enumerate(functions):
        before = f'{spelling.before}{{"name": {json.dumps(function.name)}, "{spelling.arguments}": '
        rules.append(f"call_{index}: {literal(before)} arguments_{index} {literal('}' + spelling.after)}")
        rules.append(f"arguments_{index}: %json {_schema(function)}")
    try:
        return StructuredOutputs(grammar="\n".join(rules))
    except InvalidRequest as error:
        raise bad_request(f"tools: {str(error).removeprefix('structured_outputs: ')}", "tools") from None


def _start(spelling: CallSpelling, max_calls: int | None) -> str:
    if max_calls == 1:
        return "start: call"
    several = f"call ({literal(spelling.between)} call)*"
    if not spelling.opens_list:
        return f"start: {several}"
    return f"start: {literal(spelling.opens_list)} {several} {literal(spelling.closes_list)}"


def _schema(function: Function) -> str:
    """What arguments must satisfy, with the spaces that models are used to; `strict` refuses unknown keywords.

    A function without parameters takes none.
    """
    no_parameters: dict[str, Any] = {"properties": {}, "additionalProperties": False}
    schema = dict(no_parameters if function.parameters is None else function.parameters)
    schema.setdefault("type", "object")
    schema["x-guidance"] = {
        "lenient": not function.strict,
        "whitespace_flexible": False,
        "item_separator": ", ",
        "key_separator": ": ",
    }
    return json.dumps(schema, ensure_ascii=False)
