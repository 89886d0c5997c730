"""Aliases: the names by which models call tools, valid for every provider's API and unique in an answer."""

import hashlib
import re
from collections.abc import Collection, Sequence
from functools import lru_cache

from app.catalog.definitions import ToolDefinitionView

MAX_NAME = 64
MIN_DIGEST = 6

_VALID_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_INVALID_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]+")


def make_aliases(definitions: Sequence[ToolDefinitionView]) -> list[str]:
    """Return a name for each tool that every API accepts and that no other tool in the answer has.

    A tool keeps its own name if that is valid and the user has no other tool of that name. Otherwise its alias is made
    of its server's name, its own and a digest of its id, and is the same in every answer. If a tool of a server has
    the name of a core tool, the core tool keeps it.
    """
    core_names = {tool.name for tool in definitions if tool.server_id is None}
    names = {tool.tool_id: _usable_name(tool, core_names) for tool in definitions}
    taken = {name for name in names.values() if name is not None}
    for tool in definitions:
        if names[tool.tool_id] is None:
            candidates = (_generate_name(tool, digits) for digits in range(MIN_DIGEST, MAX_NAME))
            names[tool.tool_id] = generated = next(name for name in candidates if name not in taken)
            taken.add(generated)
    return [name for tool in definitions if (name := names[tool.tool_id]) is not None]


def make_lasting_alias(tool_id: str, server_name: str | None, name: str, *, has_shared_name: bool) -> str | None:
    """Return the alias of a tool that is in no answer, or None if it depends on which other tools there were."""
    if not _VALID_NAME.fullmatch(name):
        return _join_name(tool_id, server_name or "", name, MIN_DIGEST)
    return None if has_shared_name else name


def is_alias_of(alias: str, tool: ToolDefinitionView) -> bool:
    digits = len(parse_digest(alias))
    return alias == tool.name or (digits >= MIN_DIGEST and alias == _generate_name(tool, digits))


def parse_digest(alias: str) -> str:
    """Return the digest of the tool's id that a generated alias ends with."""
    return alias.rpartition("_")[2]


def _usable_name(tool: ToolDefinitionView, core_names: Collection[str]) -> str | None:
    """Return the tool's own name, or None if it is not valid or not unique."""
    clashes = tool.has_shared_name or (tool.server_id is not None and tool.name in core_names)
    return tool.name if _VALID_NAME.fullmatch(tool.name) and not clashes else None


def _generate_name(tool: ToolDefinitionView, digits: int) -> str:
    return _join_name(tool.tool_id, tool.server_name or "", tool.name, digits)


@lru_cache(maxsize=10_000)
def _join_name(tool_id: str, server_name: str, tool_name: str, digits: int) -> str:
    digest = hashlib.sha256(tool_id.encode()).hexdigest()[:digits]
    readable = _INVALID_CHARACTERS.sub("_", f"{server_name}_{tool_name}").strip("_")
    return f"{readable[: max(0, MAX_NAME - digits - 1)]}_{digest}".lstrip("_")
