"""Values at the bounds of a JSON schema, and just past them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from server.from_schema import Schema


def simplest(schema: Schema, components: Schema) -> Any:
    """Something small that satisfies a schema."""
    if "$ref" in schema:
        return simplest(components[schema["$ref"].rpartition("/")[2]], components)
    if "anyOf" in schema:
        return simplest(schema["anyOf"][0], components)
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "object":
        return {name: simplest(schema["properties"][name], components) for name in schema.get("required", ())}
    return {"string": "x" * schema.get("minLength", 1), "integer": 1, "number": 1, "array": [], "boolean": False}.get(
        str(schema.get("type"))
    )


def at_bounds(schema: Schema, components: Schema) -> Iterator[Any]:
    """What is just allowed."""
    for kind in kinds(schema):
        yield from kind.get("enum", ())
        for name in ("minimum", "maximum"):
            if name in kind:
                yield kind[name]
        for name in ("minLength", "maxLength"):
            if name in kind:
                yield "x" * kind[name]
        for name in ("minItems", "maxItems"):
            if name in kind:
                yield [simplest(kind["items"], components)] * kind[name]


def past_bounds(schema: Schema, components: Schema) -> Iterator[Any]:
    """What is just not allowed."""
    for kind in kinds(schema):
        step = 1 if kind.get("type") == "integer" else 1e-3
        if "enum" in kind:
            yield "no such"
        if "not" in kind:
            yield kind["not"]["const"]
        for name in ("exclusiveMinimum", "exclusiveMaximum"):
            if name in kind:
                yield kind[name]
        for edge, beyond in (("minimum", -1), ("maximum", 1)):
            if edge in kind:
                yield kind[edge] + beyond * step
            if f"{edge[:3]}Length" in kind:
                yield "x" * (kind[f"{edge[:3]}Length"] + beyond)
            if f"{edge[:3]}Items" in kind:
                yield [simplest(kind["items"], components)] * (kind[f"{edge[:3]}Items"] + beyond)
        if "maxProperties" in kind:
            value = simplest(kind["additionalProperties"], components)
            yield {str(i): value for i in range(kind["maxProperties"] + 1)}
        if "items" in kind:
            yield from ([value] for value in past_bounds(kind["items"], components))


def kinds(schema: Schema) -> Iterator[Schema]:
    """The types that a value may have, each by itself."""
    if "anyOf" not in schema:
        yield schema
    for one in schema.get("anyOf", ()):
        yield from kinds(one)
