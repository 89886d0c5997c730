"""The requests that the load client sends: each kind of traffic can be sent to another process."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import orjson
from mcp_types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from app.text.strict_json import Json
from bench.load.catalogue import PRODUCTS, THINGS, USER, VERBS

MESSAGE = "please search the tickets about the broken login in cedar that came in last week"
TWO_SUBQUERIES = "please search the tickets about the broken login in cedar and share the newest one"

_QUALITIES = ["broken", "late", "urgent", "old", "missing", "wrong", "second", "large", "public", "private", "strange"]
_TOPICS = ["login", "refund", "release", "meeting", "upgrade", "address", "password", "order", "report", "backup"]
_TIMES = ["last week", "today", "in May", "on Friday", "this morning", "after lunch", "since then", "last year"]
_WORDS = [VERBS, THINGS, _QUALITIES, _TOPICS, PRODUCTS, _TIMES, ["Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gina"]]
_QUESTIONS = math.prod(map(len, _WORDS))
_STRIDE = 1_000_003
"""Prime, so that no message comes twice, and large: the messages of neighbouring numbers differ in most words."""


class Traffic(Protocol):
    def requests(self, client: int, clients: int) -> Iterator[bytes]:
        """Return what this one of the clients sends, one request after the other; the client ends with the last."""


@dataclass(frozen=True)
class Repeated:
    """Each client repeats one request: client n the n-th one."""

    different: Sequence[bytes]

    def requests(self, client: int, clients: int) -> Iterator[bytes]:  # noqa: ARG002 the interface
        return itertools.repeat(self.different[client % len(self.different)])


@dataclass(frozen=True)
class Once:
    """Every request is sent once, by one of the clients."""

    different: Sequence[bytes]

    def requests(self, client: int, clients: int) -> Iterator[bytes]:
        return iter(self.different[client::clients])


@dataclass(frozen=True)
class NewQuestions:
    """Every request has a message that was not sent before: `start` differs for each use.

    `body` is JSON with QUESTION for the message; client n sends the n-th of the headers.
    """

    path: str
    body: str
    headers: Sequence[dict[str, str]]
    start: int

    def requests(self, client: int, clients: int) -> Iterator[bytes]:
        headers = self.headers[client % len(self.headers)]
        for number in itertools.count(self.start + client, clients):
            yield post(self.path, self.body.replace("QUESTION", make_question(number)).encode(), headers)


def make_question(number: int) -> str:
    """Return the message of this number; the first three million differ."""
    rest, words = number * _STRIDE % _QUESTIONS, []
    for choices in _WORDS:
        rest, position = divmod(rest, len(choices))
        words.append(choices[position])
    verb, thing, quality, topic, product, time, name = words
    return f"please {verb} the {thing}s about the {quality} {topic} in {product} that {name} sent {time}"


def post(path: str, body: Json | bytes, headers: dict[str, str]) -> bytes:
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in headers.items())]
    lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, "", ""]).encode() + content


def authorize(key: str, user: str = USER) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", "X-User-Id": user}


def discover(query: str, headers: dict[str, str]) -> bytes:
    return post("/discover", {"query": query}, headers)


def call_mcp_tool(path: str, tool: str, arguments: Json, headers: dict[str, str], *, older: bool = False) -> bytes:
    """Return one call in the modern protocol, which has no handshake, or in an older one, without a session."""
    version = LATEST_HANDSHAKE_VERSION if older else LATEST_MODERN_VERSION
    meta = {} if older else {PROTOCOL_VERSION_META_KEY: version, CLIENT_CAPABILITIES_META_KEY: {}}
    protocol = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": version,
        "Mcp-Method": "tools/call",
        "Mcp-Name": tool,
    }
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    body: Json = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return post(path, body, headers | protocol)
