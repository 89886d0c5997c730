"""What adapters send to Toolscout of a conversation, in the formats of OpenAI and Anthropic."""

from collections.abc import Mapping, Sequence
from typing import Any

from toolscout_client.models import Json

_MAX_MESSAGES = 40
_MAX_TEXT = 3_998
"""Toolscout searches with up to 4,000 characters of a text, from both of its ends."""


def trim_messages(messages: Sequence[Any]) -> list[Json]:
    """Return the last messages, with both ends of each long text.

    Toolscout reads no more of them, and a conversation with images may be larger than the requests that it accepts.
    """
    return [_trim(message) for message in messages[-_MAX_MESSAGES:] if isinstance(message, Mapping)]


def _trim(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _MAX_TEXT:
        half = _MAX_TEXT // 2
        return f"{value[:half]}\n{value[-half:]}"
    if isinstance(value, Mapping):
        return {name: _trim(item) for name, item in value.items()}
    return [_trim(item) for item in value] if isinstance(value, list | tuple) else value


def has_user_text(messages: Sequence[Json]) -> bool:
    """Whether a user has said something that can be searched for."""
    return any(_has_text(message.get("content")) for message in messages if message.get("role") == "user")


def _has_text(content: Any) -> bool:
    if isinstance(content, str):
        return bool(content.strip())
    blocks = content if isinstance(content, list) else ()
    return any(_has_text(block.get("text")) for block in blocks if isinstance(block, dict))
