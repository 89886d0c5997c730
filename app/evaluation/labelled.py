"""Messages with the tools that they need, as a person writes them down: JSON Lines. Pure.

    {"message": "open a bug about the login page", "tools": ["github.create_issue"]}
    {"messages": [{"role": "user", "content": "…"}, …], "tools": ["create_issue"], "id": "follow-up 3"}
    {"message": "thank you!", "tools": []}

Public sets call the same things `query` and `relevant`, and are read as they are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.errors import InvalidInput
from app.search.query import Query, parse_query
from app.text.strict_json import parse_json

_OTHER_NAMES = {"query": "message", "relevant": "tools"}
_FIELDS = frozenset({"id", "message", "messages", "tools", "meta"})


@dataclass(frozen=True)
class Labelled:
    """Either `message` or `messages`, the turns of a conversation. No tools: the message needs none."""

    id: str
    tools: Sequence[str]
    message: str | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    kind: str | None = None
    """Of a public set's `meta`: what sort of message it is."""

    @property
    def query(self) -> Query:
        return parse_query(self.message, self.messages)

    @property
    def text(self) -> str:
        return self.query.user_text


def read_labelled(content: bytes) -> list[Labelled]:
    """Raises `InvalidInput`, which names the line and what is wrong with it."""
    return list(_read(content))


def _read(content: bytes) -> Iterator[Labelled]:
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield _labelled(parse_json(line, "it"), str(number))
        except InvalidInput as error:
            raise InvalidInput(f"line {number}: {error.message}") from error


def _labelled(value: Any, number: str) -> Labelled:
    if not isinstance(value, dict):
        raise InvalidInput('it must be an object such as {"message": "…", "tools": ["SERVER.TOOL"]}')
    fields = _renamed(value)
    labelled = Labelled(
        id=_id(fields.get("id", number)),
        tools=_tools(fields),
        message=_message(fields.get("message")),
        messages=_turns(fields.get("messages")),
        kind=_kind(fields.get("meta")),
    )
    if (labelled.message is None) == (labelled.messages is None):
        raise InvalidInput("give either `message` or `messages`")
    if not labelled.text:
        raise InvalidInput("there is no text to search for")
    return labelled


def _renamed(value: Mapping[str, Any]) -> dict[str, Any]:
    fields = {_OTHER_NAMES.get(name, name): each for name, each in value.items()}
    if len(fields) < len(value):
        raise InvalidInput("`query` is another name of `message`, and `relevant` of `tools`: give one of each")
    if unknown := fields.keys() - _FIELDS:
        raise InvalidInput(f"there is no field {min(unknown)!r}")
    return fields


def _id(value: Any) -> str:
    if not isinstance(value, str | int):
        raise InvalidInput("`id` must be a text or a number")
    return str(value)


def _tools(fields: Mapping[str, Any]) -> list[str]:
    tools = fields.get("tools")
    if not isinstance(tools, list) or not all(isinstance(each, str) and each for each in tools):
        raise InvalidInput("`tools` must be a list of names, empty where no tool is needed")
    return list(dict.fromkeys(tools))


def _message(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidInput("`message` must be a text")
    return value


def _turns(value: Any) -> list[Mapping[str, Any]] | None:
    if value is not None and not (isinstance(value, list) and all(isinstance(turn, dict) for turn in value)):
        raise InvalidInput("`messages` must be a list of turns")
    return value


def _kind(meta: Any) -> str | None:
    kind = meta.get("kind") if isinstance(meta, dict) else None
    return kind if isinstance(kind, str) else None
