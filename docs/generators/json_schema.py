"""JSON schemas in a few words, for tables."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
Link = Callable[[str], str]


def describe_type(schema: Schema, link: Link = str) -> str:
    """The type with its limits; `link` renders a reference to another schema."""
    return ", ".join([_name_type(schema, link), *_list_limits(schema)])


def reference_name(reference: str) -> str:
    return reference.rpartition("/")[2]


def _name_type(schema: Schema, link: Link) -> str:
    if "$ref" in schema:
        return link(reference_name(schema["$ref"]))
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(describe_type(choice, link) for choice in choices))
    if values := schema.get("enum") or ([schema["const"]] if "const" in schema else []):
        # sorted: two Literals of the same values are one to Python, in the order of the one that it met first
        return " or ".join(f"`{value}`" for value in sorted(values))
    if schema.get("type") == "array":
        return f"list of {_name_type(schema['items'], link)}"
    return str(schema.get("format") or schema.get("type") or "anything")


def _list_limits(schema: Schema) -> Iterator[str]:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    if "maximum" in schema:
        yield f"{low or 0:,.0f} to {schema['maximum']:,.0f}"
    elif "exclusiveMinimum" in schema:
        yield f"more than {low:,.0f}"
    elif "minimum" in schema:
        yield f"at least {low:,.0f}"
    if "maxLength" in schema:
        yield f"up to {schema['maxLength']:,} characters"
    for keyword in ("maxItems", "maxProperties"):
        if keyword in schema:
            yield f"up to {schema[keyword]:,}"
