"""The environment in which chat templates are compiled and rendered: nothing but text work, and not too much of it.

Three fences, each enough by itself against most attacks. Templates see only values of JSON types and the functions of
`template_functions`; of those values they may use only the attributes listed here; and all they do is metered.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import Template, Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Namespace
from jinja2.visitor import NodeTransformer

from chairlift.text.meter import Bounds, Meter, RenderLimit
from chairlift.text.template_functions import (
    COMPARED,
    CONCATENATED,
    METER,
    SLICED,
    meter_of,
    replaced,
    template_filters,
    template_globals,
    template_tests,
    written,
)

_ATTRIBUTES: tuple[tuple[type, frozenset[str]], ...] = (
    (str, frozenset({
        "capitalize", "count", "endswith", "find", "format", "index", "isalnum", "isalpha", "isascii", "isdecimal",
        "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "join",
        "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition",
        "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper",
    })),
    (dict, frozenset({"copy", "get", "items", "keys", "values"})),
    (list, frozenset({"count", "index"})),
    (LoopContext, frozenset({
        "cycle", "depth", "depth0", "first", "index", "index0", "last", "length", "nextitem", "previtem", "revindex",
        "revindex0",
    })),
    (Macro, frozenset({"arguments", "caller", "name"})),
    (Cycler, frozenset({"current", "next", "reset"})),
    (tuple, frozenset({"grouper", "list"})),
)  # fmt: skip

MAX_NUMBER_BITS = 1024
_WIDE = re.compile(r"[0-9]{4}|\*")
"""A width in a format that would make much of little, or one that comes from outside."""


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates the way transformers does (block trimming, loop controls), with the fences."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, bounds: Bounds, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_finalized,
            extensions=[LoopControlExtension, GenerationExtension],
        )
        self.bounds = bounds
        self.filters = {**template_filters(), "format": _format}
        self.tests = dict(template_tests())
        self.globals = template_globals(now)
        self.concat = self._concat  # type: ignore[method-assign]

    def rendered(self, template: Template, variables: Mapping[str, Any], meter: Meter) -> str:
        """The output of a template.

        Raises:
            RenderLimit: it goes past the bounds.
            Exception: whatever else the template does wrong.
        """
        pieces = []
        for piece in template.root_render_func(template.new_context({**variables, METER: meter})):
            meter.write(piece)
            pieces.append(piece)
        return "".join(pieces)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if attr.startswith("_"):
            return False
        if isinstance(obj, Namespace):
            return True
        return any(isinstance(obj, kind) and attr in allowed for kind, allowed in _ATTRIBUTES)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Stops at once: an undefined value would print as nothing, and hide that the template is not what it seems."""
        raise SecurityError(f"attribute {attribute!r} of {type(obj).__name__!r} is not for templates")

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):
            raise SecurityError("tuples are no keys")
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        # The names keep clear of the keyword arguments of what is called.
        meter = meter_of(__context)
        meter.spend()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, list):
            meter.weigh(owner)
        if isinstance(owner, str | dict | list):
            kwargs.pop("_loop_vars", None)  # the compiler's own, for functions that take the context
            kwargs.pop("_block_vars", None)
            for argument in (*args, *kwargs.values()):
                meter.weigh(argument)
            if isinstance(owner, str):
                meter.spend(1 + (len(owner) >> 4))
                name = __obj.__name__
                if name == "join" and args:
                    items = list(args[0])
                    meter.grow(sum(map(len, items)) + len(owner) * len(items))
                    return owner.join(items)
                if name == "replace" and len(args) > 1:
                    return replaced(meter, owner, *args, **kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter = meter_of(context)
        if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple) and operator == "+":
            meter.grow(len(left) + len(right))
        elif operator == "*" and isinstance(left, str | list | tuple) and isinstance(right, int):
            meter.grow(len(left) * max(right, 0))
        elif operator == "*" and isinstance(right, str | list | tuple) and isinstance(left, int):
            meter.grow(len(right) * max(left, 0))
        elif operator == "%" and isinstance(left, str):
            _check_format(meter, left, left.count("%"), right if isinstance(right, tuple | dict) else (right,))
        elif isinstance(left, int) and isinstance(right, int) and operator in ("*", "**"):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MAX_NUMBER_BITS:
                raise RenderLimit("it makes a number too large")
        else:
            meter.spend()
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        form = value.__self__

        def bounded(*args: Any, **kwargs: Any) -> str:
            fields = [field for field in string.Formatter().parse(form) if field[1] is not None]
            if any("{" in (spec or "") for _, _, spec, _ in fields):
                raise SecurityError("a width in a format must be written out")
            _check_format(Meter(self.bounds), form, len(fields), {**dict(enumerate(args)), **kwargs})
            return wrapped(*args, **kwargs)

        return bounded

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        for unsafe in source.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
            raise SecurityError(f"line {unsafe.lineno}: a chat template must not load others")
        for access in source.find_all(nodes.Getattr):
            if access.attr.startswith("_"):
                raise SecurityError(f"line {access.lineno}: attribute {access.attr!r} is private")
        return super()._generate(_Metering().visit(source), *args, **kwargs)

    def _concat(self, pieces: Iterable[str]) -> str:
        """Put together what a macro or a block wrote."""
        pieces = list(pieces)
        if sum(map(len, pieces)) > self.bounds.max_chars:
            raise RenderLimit(f"it makes a value larger than {self.bounds.max_chars}")
        return "".join(pieces)

    @pass_context
    def tick(self, context: Context) -> None:
        """One round of a loop."""
        meter_of(context).spend()


class GenerationExtension(Extension):
    """Ignores `{% generation %}`, which marks for training what the assistant wrote."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Metering(NodeTransformer):
    """Puts the meter into the syntax tree, where no method of the environment is called by itself."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        tick = nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(tick).set_lineno(node.lineno, override=True))
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        node.expr = _through(COMPARED, node.expr)
        for operand in node.ops:
            operand.expr = _through(COMPARED, operand.expr)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Pair:  # noqa: N802
        self.generic_visit(node)
        node.key = _through(COMPARED, node.key)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _through(CONCATENATED, nodes.List(node.nodes, lineno=node.lineno))

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Getitem:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _through(SLICED, node.node)
        return node


def _through(filter_name: str, value: nodes.Expr) -> nodes.Expr:
    if isinstance(value, nodes.Const):
        return value
    return nodes.Filter(value, filter_name, [], [], None, None, lineno=value.lineno)


@pass_context
def _finalized(context: Context, value: Any) -> Any:
    """What is written for a value."""
    return value if isinstance(value, str) else written(meter_of(context), value)


@pass_context
def _format(context: Context, form: str, *args: Any, **kwargs: Any) -> str:
    """The old way of formatting: `%` with the values."""
    values: Any = kwargs or args
    _check_format(meter_of(context), form, form.count("%"), values)
    return str(form % values)


def _check_format(meter: Meter, form: str, num_fields: int, values: tuple[Any, ...] | dict[Any, Any]) -> None:
    """Bound the result of formatting: each field writes one of the values, escaped at worst to ten times its length."""
    if _WIDE.search(form):
        raise RenderLimit("it formats too widely")
    items = values.values() if isinstance(values, dict) else values
    longest = max((meter.weigh(item) for item in items), default=0)
    meter.grow(len(form) + num_fields * (1000 + 10 * longest) if longest > 1000 else len(form) + 1000 * num_fields)
