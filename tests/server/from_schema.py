"""Values that a JSON schema allows, for Hypothesis: of the keywords that our own document uses, and no others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

ANNOTATIONS = {"title", "description", "default", "examples", "deprecated"}
KNOWN = ANNOTATIONS | {
    "$ref", "anyOf", "enum", "const", "type", "properties", "required", "additionalProperties", "items", "prefixItems",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems",
    "maxProperties", "minProperties", "pattern", "propertyNames", "not",
}  # fmt: skip
MAX_DEPTH = 4
LARGE = 2**63

Schema = Mapping[str, Any]


def anything() -> st.SearchStrategy[Any]:
    """Any JSON."""
    leaves = st.none() | st.booleans() | st.integers(-LARGE, LARGE) | st.text(max_size=8)
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=5,
    )


def valid(schema: Schema, components: Schema, depth: int = 0) -> st.SearchStrategy[Any]:
    """What satisfies a schema.

    Raises:
        ValueError: the schema has a keyword that is not known here, so that nothing could be said of it.
    """
    unknown = schema.keys() - KNOWN
    if unknown:
        raise ValueError(f"keywords that are not known here: {sorted(unknown)}")
    if "$ref" in schema:
        return valid(components[schema["$ref"].rpartition("/")[2]], components, depth + 1)
    if "not" in schema:
        others = {name: value for name, value in schema.items() if name != "not"}
        return valid(others, components, depth).filter(lambda value: value != schema["not"]["const"])
    if "anyOf" in schema:
        return st.one_of(*(valid(one, components, depth) for one in schema["anyOf"]))
    if "enum" in schema:
        return st.sampled_from(list(schema["enum"]))
    if "const" in schema:
        return st.just(schema["const"])
    kind = schema.get("type")
    if kind is None:
        return anything()
    return _OF_TYPE[kind](schema, components, depth)


def _integer(schema: Schema, components: Schema, depth: int) -> st.SearchStrategy[Any]:
    low, high = schema.get("minimum", -LARGE), schema.get("maximum", LARGE)
    return st.integers(low, high) | st.integers(low, min(high, low + 64)) | st.sampled_from([low, high])


def _number(schema: Schema, components: Schema, depth: int) -> st.SearchStrategy[Any]:
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    return st.floats(
        schema.get("minimum", above),
        schema.get("maximum", below),
        exclude_min=above is not None,
        exclude_max=below is not None,
        allow_nan=False,
        allow_infinity=False,
    )


def _string(schema: Schema, components: Schema, depth: int) -> st.SearchStrategy[Any]:
    if "pattern" in schema:
        return st.from_regex(schema["pattern"], fullmatch=True)
    least = schema.get("minLength", 0)
    most = min(schema.get("maxLength", least + 24), least + 24)
    return st.text(st.characters(codec="utf-8"), min_size=least, max_size=most)


def _array(schema: Schema, components: Schema, depth: int) -> st.SearchStrategy[Any]:
    if "prefixItems" in schema:
        return st.tuples(*(valid(one, components, depth + 1) for one in schema["prefixItems"])).map(list)
    least = schema.get("minItems", 0)
    most = least if depth > MAX_DEPTH else min(schema.get("maxItems", least + 3), least + 3)
    return st.lists(valid(schema.get("items", {}), components, depth + 1), min_size=least, max_size=most)


def _object(schema: Schema, components: Schema, depth: int) -> st.SearchStrategy[Any]:
    properties = schema.get("properties", {})
    required = set(schema.get("required", ()))
    few = {name: valid(one, components, depth + 1) for name, one in properties.items() if name in required}
    more = (
        {}
        if depth > MAX_DEPTH
        else {name: valid(one, components, depth + 1) for name, one in properties.items() if name not in required}
    )
    if properties:
        return st.fixed_dictionaries(few, optional=more)
    others = schema.get("additionalProperties", {})
    inner = anything() if isinstance(others, bool) else valid(others, components, depth + 1)
    names = valid({"type": "string", **schema.get("propertyNames", {})}, components, depth + 1)
    least = schema.get("minProperties", 0)
    return st.dictionaries(names, inner, min_size=least, max_size=least + 3)


_OF_TYPE: dict[str, Callable[[Schema, Schema, int], st.SearchStrategy[Any]]] = {
    "integer": _integer,
    "number": _number,
    "string": _string,
    "array": _array,
    "object": _object,
    "boolean": lambda schema, components, depth: st.booleans(),
    "null": lambda schema, components, depth: st.none(),
}
