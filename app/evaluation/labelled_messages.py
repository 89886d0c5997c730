"""Parse labelled messages: JSON Lines of messages, each with the tools that it needs.

    {"message": "open a bug about the login page", "tools": ["github.create_issue"]}
    {"messages": [{"role": "user", "content": "…"}, …], "tools": ["create_issue"], "id": "follow-up 3"}
    {"message": "thank you!", "tools": []}

Public sets use the names `query` and `relevant` for the same fields; both forms are accepted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.errors import InvalidInput
from app.search.query import Query, parse_query
from app.text.strict_json import parse_json

_ALIASES = {"query": "message", "relevant": "tools"}
_FIELDS = frozenset({"id", "message", "messages", "tools", "meta"})


@dataclass(frozen=True)
class LabelledMessage:
    """Either `message` or `messages`, the turns of a conversation. An empty `tools` means that no tool is needed."""

    id: str
    tools: Sequence[str]
    message: str | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    kind: str | None = None
    """The kind of message, from the `meta` of a public set."""

    @property
    def query(self) -> Query:
        return parse_query(self.message, self.messages)

    @property
    def text(self) -> str:
        return self.query.user_text


def parse_labelled_messages(content: bytes) -> list[LabelledMessage]:
    """Raise `InvalidInput` with the number of the first invalid line and what is wrong with it."""
    items = []
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            items.append(_parse_item(parse_json(line, "it"), str(number)))
        except InvalidInput as error:
            raise InvalidInput(f"line {number}: {error.message}") from error
    return items


def _parse_item(value: Any, number: str) -> LabelledMessage:
    if not isinstance(value, dict):
        raise InvalidInput('it must be an object such as {"message": "…", "tools": ["SERVER.TOOL"]}')
    fields = _resolve_aliases(value)
    item = LabelledMessage(
        id=_check_id(fields.get("id", number)),
        tools=_check_tools(fields.get("tools")),
        message=_check_message(fields.get("message")),
        messages=_check_turns(fields.get("messages")),
        kind=_get_kind(fields.get("meta")),
    )
    if (item.message is None) == (item.messages is None):
        raise InvalidInput("give either `message` or `messages`")
    if not item.text:
        raise InvalidInput("the message has no text to search for")
    return item


def _resolve_aliases(value: Mapping[str, Any]) -> dict[str, Any]:
    fields = {_ALIASES.get(name, name): each for name, each in value.items()}
    if len(fields) < len(value):
        raise InvalidInput("`query` is an alias of `message`, and `relevant` of `tools`: give only one of each")
    if unknown := fields.keys() - _FIELDS:
        raise InvalidInput(f"unknown field {min(unknown)!r}")
    return fields


def _check_id(value: Any) -> str:
    if not isinstance(value, str | int):
        raise InvalidInput("`id` must be a string or a number")
    return str(value)


def _check_tools(tools: Any) -> list[str]:
    if not isinstance(tools, list) or not all(isinstance(each, str) and each for each in tools):
        raise InvalidInput("`tools` must be a list of names, empty if no tool is needed")
    return list(dict.fromkeys(tools))


def _check_message(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidInput("`message` must be a string")
    return value


def _check_turns(value: Any) -> list[Mapping[str, Any]] | None:
    if value is not None and not (isinstance(value, list) and all(isinstance(turn, dict) for turn in value)):
        raise InvalidInput("`messages` must be a list of turns")
    return value


def _get_kind(meta: Any) -> str | None:
    kind = meta.get("kind") if isinstance(meta, dict) else None
    return kind if isinstance(kind, str) else None
