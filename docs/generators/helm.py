"""`docs/reference/helm.md`: every value of the Helm chart, from its `values.yaml` and `values.schema.json`.

The schema's definitions of settings are made here, from `app.settings`: Helm then refuses a misspelt setting, a value
of the wrong type, and a secret that is written as a setting.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from app.settings import Settings, secret_fields, variable_name
from docs.generators.json_schema import Schema, describe_type, reference_name
from docs.generators.markdown import render_table

CHART = Path(__file__).resolve().parents[2] / "deploy/helm/toolscout"
VALUES, SCHEMA = CHART / "values.yaml", CHART / "values.schema.json"
SET_BY_THE_CHART = frozenset({"environment", "role", "port", "data_dir", "drain_s"})
"""Settings that say what a container is, and where it is. The templates set them."""

_INTRODUCTION = """# Helm chart reference

Every value of the chart in `deploy/helm/toolscout` (`make docs` writes this page).
[Scaling](../guides/scaling.md#kubernetes) shows how to install it. Put your values into a file, and give it to `helm
upgrade --values`. The chart refuses values that are not listed here, settings that are not in the [settings
reference](settings.md), and secrets among the settings.
"""

_KEYWORDS = ("type", "enum", "minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength")
"""What the schema of a setting keeps of pydantic's, which Helm knows, too."""
_BOOLEAN = {"enum": [True, False, 0, 1]}


@dataclass(frozen=True)
class Value:
    """A value of the chart, or a group of values, with its comment in `values.yaml`."""

    path: tuple[str, ...]
    comment: str
    default: Any
    schema: Schema

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def is_group(self) -> bool:
        return "properties" in self.schema


def list_values() -> list[Value]:
    """Return all values and groups, in the order of `values.yaml`. Those that the schema lacks have an empty schema."""
    text, schema = VALUES.read_text(), json.loads(SCHEMA.read_text())
    document = yaml.compose(text)
    assert isinstance(document, yaml.MappingNode)  # noqa: S101
    return list(_walk(document, yaml.safe_load(text), schema, text.splitlines(), schema["definitions"], ()))


def render_page() -> str:
    values = list_values()
    groups = {value.path[0]: value for value in values if value.is_group}
    general = [value for value in values if len(value.path) == 1 and not value.is_group]
    parts = [_INTRODUCTION, _render_table(general)]
    for name, group in groups.items():
        members = [value for value in values if value.path[0] == name and not value.is_group]
        parts.append(f"## `{name}`\n\n{group.comment}.\n\n{_render_table(members)}")
    return "\n".join(parts)


def render_schema() -> str:
    """Return `values.schema.json` with the definitions of this version's settings."""
    schema = json.loads(SCHEMA.read_text())
    settings = Settings.model_json_schema(by_alias=False)["properties"]
    secrets = secret_fields()
    schema["definitions"]["secretItems"] = _make_object(
        {variable_name(field): {"$ref": "#/definitions/secretItem"} for field in secrets}
    )
    schema["definitions"]["settings"] = _make_object(
        {
            variable_name(field): _convert_setting(settings[field])
            for field in Settings.model_fields
            if field not in SET_BY_THE_CHART and field not in secrets
        }
    )
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    """Write the schema, or with `--check` say whether it is up to date."""
    schema = render_schema()
    is_outdated = SCHEMA.read_text() != schema
    if arguments == ["--check"]:
        if is_outdated:
            print(f"{SCHEMA.name} of the Helm chart is out of date: run `make docs`", file=sys.stderr)  # noqa: T201
        return int(is_outdated)
    if is_outdated:
        SCHEMA.write_text(schema)
    return 0


def _walk(
    node: yaml.MappingNode,
    defaults: Mapping[str, Any],
    schema: Schema,
    lines: list[str],
    definitions: Mapping[str, Schema],
    parents: tuple[str, ...],
) -> Iterator[Value]:
    for key, child in node.value:
        below = _resolve(schema.get("properties", {}).get(key.value, {}), definitions)
        path = (*parents, key.value)
        value = Value(path, _read_comment(lines, key.start_mark.line), defaults[key.value], below)
        yield value
        if value.is_group:
            yield from _walk(child, value.default, below, lines, definitions, path)


def _resolve(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Follow a reference. A definition has no members here: what is in it is one value."""
    if "items" in schema:
        return {**schema, "items": _resolve(schema["items"], definitions)}
    if "$ref" not in schema:
        return schema
    found = _resolve(definitions[reference_name(schema["$ref"])], definitions)
    return {name: content for name, content in found.items() if name != "properties"}


def _read_comment(lines: list[str], line: int) -> str:
    """Return the comment directly above a line."""
    comment: list[str] = []
    while line > 0 and (match := re.fullmatch(r" *# ?(.*)", lines[line - 1])):
        comment.insert(0, match[1])
        line -= 1
    return " ".join(comment)


def _render_table(values: list[Value]) -> str:
    rows = [
        (f"`{value.name}`", describe_type(value.schema), _render_default(value.default), value.comment)
        for value in values
    ]
    return render_table(("value", "type", "default", "meaning"), rows)


def _render_default(default: Any) -> str:
    return "" if default in ("", [], {}) else f"`{json.dumps(default, ensure_ascii=False)}`"


def _make_object(properties: Mapping[str, Schema]) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": dict(properties)}


def _convert_setting(schema: Schema) -> Schema:
    """Keep what Helm checks. All settings may be absent, so that null says nothing; 0 and 1 are booleans, too."""
    [choice] = [choice for choice in schema.get("anyOf", [schema]) if choice.get("type") != "null"]
    checks = (
        _BOOLEAN if choice.get("type") == "boolean" else {name: choice[name] for name in _KEYWORDS if name in choice}
    )
    return {**checks, "description": schema["description"]}
