"""From what a chat backend sends to the text that is searched for. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

LONGEST_SEARCHED = 4_000


def search_text(query: str | None, messages: Sequence[Mapping[str, Any]] | None) -> str:
    """The query, or what the user said last."""
    text = query if query is not None else _last_user_text(messages or ())
    return shortened(text.strip())


def shortened(text: str) -> str:
    """A pasted document usually follows or precedes the wish itself: keep both ends."""
    if len(text) <= LONGEST_SEARCHED:
        return text
    half = LONGEST_SEARCHED // 2
    return f"{text[:half]}\n{text[-half:]}"


def _last_user_text(messages: Sequence[Mapping[str, Any]]) -> str:
    for message in reversed(messages):
        if message.get("role") == "user" and (text := _text_of(message.get("content"))):
            return text
    return ""


def _text_of(content: Any) -> str:
    """A string, or blocks of which OpenAI's and Anthropic's text ones carry `text`."""
    if isinstance(content, str):
        return content.strip()
    if not isinstance(content, list):
        return ""
    texts = (block.get("text") for block in content if isinstance(block, dict))
    return "\n".join(text for text in texts if isinstance(text, str)).strip()
