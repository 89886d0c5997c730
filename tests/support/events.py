"""Reads server-sent events, for tests that listen to our own."""

import json
from collections.abc import Iterable, Iterator
from typing import Any


def events_of(lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    kind = "message"
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)
