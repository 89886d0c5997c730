"""The names that models know tools by: valid for every API, one for each tool, and the way back. Pure."""

import hashlib
import re
from collections.abc import Collection, Sequence

from app.catalog.definitions import ToolDefinitionView

MAX_NAME = 64
DIGEST = 6

_VALID_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_INVALID = re.compile(r"[^A-Za-z0-9_-]+")


def make_aliases(offers: Sequence[ToolDefinitionView]) -> list[str]:
    """A name for each tool that every API accepts and that no other tool in the answer has.

    A tool keeps its own name where that is valid and the user has no second tool of that name; otherwise it gets its
    server's name and a few digits of its key, so that the alias is the same in every answer. Where a tool of a server
    has the name of a core tool, the core tool keeps it.
    """
    native = {offer.name for offer in offers if offer.server_id is None}
    names = {offer.tool_id: _plain_name(offer, native) for offer in offers}
    taken = {name for name in names.values() if name is not None}
    for offer in offers:
        if names[offer.tool_id] is None:
            candidates = (_made_name(offer, digits) for digits in range(DIGEST, MAX_NAME))
            names[offer.tool_id] = made = next(name for name in candidates if name not in taken)
            taken.add(made)
    return [name for offer in offers if (name := names[offer.tool_id]) is not None]


def is_alias_of(alias: str, offer: ToolDefinitionView) -> bool:
    digits = len(parse_digest(alias))
    return alias == offer.name or (digits >= DIGEST and alias == _made_name(offer, digits))


def parse_digest(alias: str) -> str:
    """Of the tool's key, where the alias is a made one."""
    return alias.rpartition("_")[2]


def _plain_name(offer: ToolDefinitionView, native: Collection[str]) -> str | None:
    clashes = offer.shares_its_name or (offer.server_id is not None and offer.name in native)
    return offer.name if _VALID_NAME.fullmatch(offer.name) and not clashes else None


def _made_name(offer: ToolDefinitionView, digits: int) -> str:
    digest = hashlib.sha256(offer.tool_id.encode()).hexdigest()[:digits]
    readable = _INVALID.sub("_", f"{offer.server_name or ''}_{offer.name}").strip("_")
    return f"{readable[: max(0, MAX_NAME - digits - 1)]}_{digest}".lstrip("_")
