"""Values that a configuration leaves open: `${NAME}`, `${env:NAME}`, `${NAME:-default}` and VS Code's `${input:id}`."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.text.strict_json import Json

PLACEHOLDER = re.compile(r"\$\{([^{}]+)\}")
_PARTS = re.compile(r"(?:(?P<kind>env|input):)?(?P<name>.+?)(?::-(?P<default>.*))?", re.DOTALL)
_MIN_SECRET_LENGTH = 4
"""Shorter values protect nothing, and would turn up in every sentence."""


@dataclass(frozen=True)
class Placeholder:
    name: str
    is_input: bool = False
    """VS Code asks a person for it. All others are variables of the environment."""
    description: str = ""
    is_secret: bool = True
    default: str | None = None
    options: Sequence[str] = ()


@dataclass(frozen=True)
class FilledText:
    text: str = field(repr=False)
    used: Mapping[str, str] = field(repr=False)
    """The values of the placeholders, by name."""
    missing: Sequence[str]
    """Names of placeholders that have no value."""


def parse_input(item: Any) -> Placeholder | None:
    """Read one of VS Code's `inputs`."""
    if not isinstance(item, dict) or not isinstance(item.get("id"), str):
        return None
    description, default = item.get("description"), item.get("default")
    choices = [each.get("value") if isinstance(each, dict) else each for each in _read_options(item)]
    return Placeholder(
        name=item["id"],
        is_input=True,
        description=description if isinstance(description, str) else "",
        is_secret=item.get("password") is True,
        default=default if isinstance(default, str) else None,
        options=tuple(choice for choice in choices if isinstance(choice, str)),
    )


def _read_options(item: Json) -> list[Any]:
    options = item.get("options")
    return options if isinstance(options, list) else []


def find_placeholders(texts: Iterable[str], inputs: Mapping[str, Placeholder]) -> list[Placeholder]:
    """Return the placeholders of the texts, each once. `inputs` describes those that are declared."""
    found = [_parse(content, inputs) for text in texts for content in PLACEHOLDER.findall(text)]
    return list({placeholder.name: placeholder for placeholder in found}.values())


def fill_placeholders(text: str, inputs: Mapping[str, Placeholder], values: Mapping[str, str]) -> FilledText:
    """Replace the placeholders by values. An empty value is the same as none, as it is in a shell."""
    used: dict[str, str] = {}
    missing: list[str] = []

    def replace(match: re.Match[str]) -> str:
        placeholder = _parse(match[1], inputs)
        value = values.get(placeholder.name) or placeholder.default
        if value is None:
            missing.append(placeholder.name)
            return match[0]
        used[placeholder.name] = value
        return value

    return FilledText(PLACEHOLDER.sub(replace, text), used, missing)


def hide_values(text: str, used: Mapping[str, str]) -> str:
    """Put the placeholders back into a text. Case does not matter: messages name hosts in lower case."""
    for name, value in used.items():
        if len(value) >= _MIN_SECRET_LENGTH:
            text = f"${{{name}}}".join(re.split(re.escape(value), text, flags=re.IGNORECASE))
    return text


def _parse(content: str, inputs: Mapping[str, Placeholder]) -> Placeholder:
    parts = _PARTS.fullmatch(content)
    assert parts is not None  # noqa: S101 the pattern matches every text that is not empty
    if parts["kind"] == "input":
        return inputs.get(parts["name"]) or Placeholder(parts["name"], is_input=True)
    return Placeholder(parts["name"], default=parts["default"])
