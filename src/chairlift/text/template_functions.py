"""The filters, tests and globals that a chat template may use: those that chat templates do use, each one bounded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, cast

from jinja2 import Undefined, pass_context
from jinja2.exceptions import TemplateError
from jinja2.filters import FILTERS, sync_do_slice
from jinja2.runtime import Context
from jinja2.tests import TESTS
from jinja2.utils import Cycler, Joiner, Namespace

from chairlift.text.meter import Meter, RenderLimit

METER = "the meter"
"""Where a rendering keeps its meter: a name that no template can write."""

LONG_TEXT_CHARS = 1024
MAX_INDENT = 64
MAX_RANGE = 100_000
MAX_WIDTH = 1000
"""Of a row that is filled up."""

_TESTS = (
    *("boolean", "callable", "defined", "divisibleby", "even", "false", "filter", "float", "integer", "iterable"),
    *("mapping", "none", "number", "odd", "sameas", "sequence", "string", "test", "true", "undefined"),
)
_TESTS_OF_WHOLE_VALUES = (
    *("==", "!=", "<", "<=", ">", ">=", "eq", "equalto", "ne", "in", "lt", "lessthan", "le", "gt", "greaterthan", "ge"),
    *("lower", "upper"),
)

Function = Callable[..., Any]


class TemplateRefusal(TemplateError):
    """A template called `raise_exception`: it cannot render these messages, and says why."""


def meter_of(context: Context) -> Meter:
    meter: Meter = context.parent[METER]
    return meter


def template_filters() -> dict[str, Function]:
    """The filters by name."""
    filters: dict[str, Function] = {
        "tojson": tojson,
        "join": join,
        "replace": replace,
        "indent": indent,
        "list": as_list,
        "first": first,
        "last": last,
        "round": rounded,
        "center": centered,
        "dictsort": dictsort,
        "groupby": grouped,
        "truncate": truncated,
        "sum": summed,
        COMPARED: compared,
        CONCATENATED: concatenated,
        SLICED: sliced,
    }
    for name in ("capitalize", "e", "escape", "lower", "safe", "string", "title", "trim", "upper", "wordcount"):
        filters[name] = _on_text(FILTERS[name])
    for name in ("abs", "count", "d", "default", "float", "int", "items", "length", "reverse"):
        filters[name] = _on_value(FILTERS[name])
    for name in ("max", "min", "sort", "unique"):
        filters[name] = _on_elements(FILTERS[name])
    filters |= {"batch": _in_rows(FILTERS["batch"]), "slice": _in_rows(sync_do_slice)}
    for name in ("map", "reject", "rejectattr", "select", "selectattr"):
        filters[name] = FILTERS[name]
    return filters


def template_tests() -> dict[str, Function]:
    """The tests by name; those that compare whole values weigh them first."""
    tests: dict[str, Function] = {name: cast(Function, TESTS[name]) for name in _TESTS}
    return tests | {name: _on_text(cast(Function, TESTS[name])) for name in _TESTS_OF_WHOLE_VALUES}


def template_globals(now: Callable[[], datetime]) -> dict[str, object]:
    """The functions by name; `now` gives the date that some templates write."""

    def strftime_now(form: str) -> str:
        if len(form) > 100 or any(character.isdigit() for character in form):
            raise TemplateRefusal("strftime_now: no such format")
        return now().strftime(form)

    return {
        "cycler": Cycler,
        "dict": make_dict,
        "joiner": Joiner,
        "namespace": Namespace,
        "raise_exception": raise_exception,
        "range": bounded_range,
        "strftime_now": strftime_now,
    }


# ---------------------------------------------------------------- globals


def raise_exception(message: str) -> None:
    raise TemplateRefusal(str(message))


def bounded_range(*arguments: int) -> range:
    numbers = range(*arguments)
    if len(numbers) > MAX_RANGE:
        raise RenderLimit(f"it counts to more than {MAX_RANGE}")
    return numbers


def make_dict(values: Mapping[str, Any] | None = None, **named: Any) -> dict[str, Any]:
    """`dict`, but not from pairs, whose keys would be hashed unseen."""
    return {**(values or {}), **named}


# ---------------------------------------------------------------- filters


@pass_context
def tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on: no escapes for HTML, nor for other scripts."""
    meter = meter_of(context)
    weight = meter.weigh(value)
    if indent is not None and not isinstance(indent, str):
        indent = max(int(indent), 0)
    if (indent if isinstance(indent, int) else len(indent or "")) > MAX_INDENT or meter.weigh(separators) > 200:
        raise RenderLimit("it indents too far")
    if ensure_ascii:
        meter.grow(6 * weight)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, allow_nan=False
    )


@pass_context
def join(context: Context, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    meter = meter_of(context)
    items = as_list(context, value)
    if attribute is not None:
        items = [context.environment.getitem(item, attribute) for item in items]
    return joined(meter, items, str(d))


def joined(meter: Meter, items: list[Any], separator: str = "") -> str:
    """Write out the items, one after another."""
    meter.grow(sum(meter.weigh(item) for item in items) + len(separator) * len(items))
    return separator.join([item if isinstance(item, str) else str(item) for item in items])


@pass_context
def replace(context: Context, value: Any, old: str, new: str, count: int | None = None) -> str:
    meter = meter_of(context)
    text = written(meter, value)
    return replaced(meter, text, str(old), str(new), -1 if count is None else count)


def replaced(meter: Meter, text: str, old: str, new: str, count: int = -1) -> str:
    """`str.replace`, whose result can be as long as the product of its arguments."""
    meter.grow(len(text) + text.count(old) * len(new))
    return text.replace(old, new, count)


@pass_context
def indent(context: Context, value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Indent all lines but the first; that one too with `first`, and empty ones with `blank`."""
    meter = meter_of(context)
    margin = width if isinstance(width, str) else " " * min(int(width), MAX_INDENT + 1)
    if len(margin) > MAX_INDENT:
        raise RenderLimit("it indents too far")
    text = written(meter, value)
    lines = (text + "\n").splitlines()
    meter.grow(len(text) + len(lines) * len(margin))
    rest = [margin + line if line or blank else line for line in lines[1:]]
    return "\n".join([margin + lines[0] if first else lines[0], *rest])


@pass_context
def dictsort(
    context: Context, value: Mapping[str, Any], case_sensitive: bool = False, by: str = "key", reverse: bool = False
) -> list[tuple[str, Any]]:
    meter = meter_of(context)
    meter.spend(1 + meter.weigh(value) // 4)

    def rank(item: tuple[str, Any]) -> Any:
        part = item[1 if by == "value" else 0]
        if isinstance(part, str):
            part = part if meter.originals is None else part.translate(meter.originals)
            return part if case_sensitive else part.lower()
        return part

    return sorted(value.items(), key=rank, reverse=reverse)


@pass_context
def summed(context: Context, value: Iterable[Any], attribute: str | int | None = None, start: float = 0) -> float:
    """The sum of numbers: of lists it could grow without bounds."""
    items = as_list(context, value)
    if attribute is not None:
        items = [context.environment.getitem(item, attribute) for item in items]
    if not all(isinstance(item, int | float) for item in (start, *items)):
        raise TypeError("only numbers have a sum")
    return sum(items, start)


@pass_context
def grouped(
    context: Context,
    value: Iterable[Any],
    attribute: str | int,
    default: Any = None,
    case_sensitive: bool = False,
) -> list[tuple[Any, list[Any]]]:
    """Elements with the same attribute together, in its order: pairs of it and of a list."""
    meter = meter_of(context)
    items = as_list(context, value)
    meter.spend(1 + meter.weigh(items) // 4)
    result: list[tuple[Any, list[Any]]] = FILTERS["groupby"](
        context.environment, items, attribute, default=default, case_sensitive=case_sensitive
    )
    return result


@pass_context
def centered(context: Context, value: Any, width: int = 80) -> str:
    meter = meter_of(context)
    text = written(meter, value)
    meter.grow(max(len(text), int(width)))
    if width > MAX_WIDTH:
        raise RenderLimit(f"it centres a text in more than {MAX_WIDTH} characters")
    return text.center(width)


@pass_context
def truncated(
    context: Context, value: Any, length: int = 255, killwords: bool = False, end: str = "...", leeway: int = 5
) -> str:
    """The beginning of a text, to the end of a word unless `killwords`, and an ending, unless nearly all of it fits."""
    text = written(meter_of(context), value)
    return str(FILTERS["truncate"](context.environment, text, length, killwords, str(end), leeway))


@pass_context
def as_list(context: Context, value: Iterable[Any]) -> list[Any]:
    meter = meter_of(context)
    items = []
    for item in value:
        items.append(item)
        if not len(items) & 63:
            meter.grow(len(items))
            meter.spend(8)
    meter.spend(1 + len(items) % 64)
    return items


@pass_context
def first(context: Context, value: Iterable[Any]) -> Any:
    meter_of(context).spend()
    return next(iter(value), context.environment.undefined("the first of nothing"))


@pass_context
def last(context: Context, value: Any) -> Any:
    meter_of(context).spend()
    return next(iter(reversed(value)), context.environment.undefined("the last of nothing"))


@pass_context
def rounded(context: Context, value: float, precision: int = 0, method: str = "common") -> float:
    meter_of(context).spend()
    if abs(precision) > 20:
        raise RenderLimit("it rounds to too many digits")
    result: float = FILTERS["round"](value, precision, method)
    return result


# Filters that the compiler puts in; no template can write their names.

COMPARED = "compared as a whole"
"""On operands of comparisons and keys of dictionaries."""
CONCATENATED = "written one after another"
"""On the operands of `~`, as a list."""
SLICED = "copied in part"
"""On what a slice is taken of."""


@pass_context
def compared(context: Context, value: Any) -> Any:
    """The value itself, weighed: comparing and hashing visit all of it."""
    if isinstance(value, str):
        meter = meter_of(context)
        if len(value) >= LONG_TEXT_CHARS:
            meter.grow(len(value))
        return value if meter.originals is None else value.translate(meter.originals)
    if not isinstance(value, int | float | Undefined) and value is not None:
        meter_of(context).weigh(value)
    return value


@pass_context
def concatenated(context: Context, items: list[Any]) -> str:
    return joined(meter_of(context), items)


@pass_context
def sliced(context: Context, value: Any) -> Any:
    meter_of(context).grow(len(value) if isinstance(value, str | list | tuple) else 1)
    return value


def written(meter: Meter, value: Any) -> str:
    """A value as text; an undefined one is empty."""
    meter.weigh(value)
    return value if isinstance(value, str) else str(value)


def _on_text(function: Function) -> Function:
    """A function that writes its arguments out, or visits them as a whole."""

    @pass_context
    def weighed(context: Context, *values: Any, **named: Any) -> Any:
        meter = meter_of(context)
        for value in (*values, *named.values()):
            meter.weigh(value)
        return function(*values, **named)

    return weighed


def _on_value(function: Function) -> Function:
    """A function that takes a value as it is and does not go through it."""

    @pass_context
    def counted(context: Context, *values: Any, **named: Any) -> Any:
        meter_of(context).spend()
        return function(*values, **named)

    return counted


def _in_rows(function: Function) -> Function:
    """A function that cuts its first argument in rows of some size."""

    @pass_context
    def counted(context: Context, value: Iterable[Any], size: int, fill_with: Any = None) -> list[Any]:
        if not 0 < size <= MAX_WIDTH:
            raise RenderLimit(f"it asks for rows or columns outside 1 to {MAX_WIDTH}")
        return as_list(context, function(as_list(context, value), size, fill_with))

    return counted


def _on_elements(function: Function) -> Function:
    """A function that compares the elements of its first argument with each other."""

    @pass_context
    def weighed(context: Context, value: Any, *values: Any, **named: Any) -> Any:
        elements = value if isinstance(value, dict) else as_list(context, value)
        meter = meter_of(context)
        meter.spend(1 + meter.weigh(elements) // 4)
        result = function(context.environment, elements, *values, **named)
        return as_list(context, result) if isinstance(result, Iterator) else result

    return weighed
