"""A parser of server-sent events."""

import json
from collections.abc import Iterable, Iterator
from typing import Any


def parse_events(lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield the event's name and its JSON data."""
    kind = "message"
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)
