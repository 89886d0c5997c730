"""The message that a page shows after a redirect.

A URL carries the message's name, not its text: a link must not be able to put words into the console.
"""

from dataclasses import dataclass
from typing import Literal

_MESSAGES = {
    "signed-out": "You are signed out.",
    "server-added": "Server added. Its tools are being indexed: see the run below.",
    "push-server-added": "Server added. Push its tools with the command below.",
    "server-changed": "Server saved.",
    "server-deleted": "Server and its tools deleted.",
    "server-disconnected": "Disconnected. Its tools stay, and need a new sign-in to run.",
    "shared-server-changed": "Shared server saved. The copies of its members follow within seconds.",
    "shared-server-deleted": "Shared server deleted. The copies of its members go within seconds.",
    "reindex-requested": "Reindex requested: see the run below.",
    "reindex-all-requested": "Reindex of all servers requested.",
    "tool-changed": "Tool saved.",
    "texts-saved": "Texts saved. The search uses them as soon as they are indexed, which takes a moment.",
    "texts-reset": "The server’s texts are in use again.",
    "tool-approved": "Definition approved.",
    "tools-approved": "Definitions approved.",
    "category-renamed": "Category renamed.",
    "examples-saved": "Examples saved. They are in effect now.",
    "examples-forgotten": "What was learnt from use is forgotten. The examples in words stay.",
    "rules-saved": "Rules saved. They are in effect now.",
    "project-created": "Project created.",
    "project-changed": "Project saved.",
    "project-deleted": "Project and its keys deleted.",
    "key-revoked": "Key revoked. It has stopped working everywhere.",
    "user-created": "User created.",
    "user-changed": "User saved.",
}


_WARNINGS = {
    "select-user": "Select a user first: that page shows the data of one user.",
}


@dataclass(frozen=True)
class FlashMessage:
    text: str
    level: Literal["good", "warn"]


def get_flash_message(name: str | None) -> FlashMessage | None:
    if name in _WARNINGS:
        return FlashMessage(_WARNINGS[name], "warn")
    return FlashMessage(_MESSAGES[name], "good") if name in _MESSAGES else None
