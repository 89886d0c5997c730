"""The categories of a user's tools: list them with what is visible of each, find them by name, rename them.

`indexing/categories` makes them. They filter, and never decide what is visible. The filters of a request are applied in
Postgres, so that no search in memory depends on them; a changed name gives the catalogue a new version.
"""

import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import select, update

from app.catalog.visibility import VISIBLE, Scope, bump_catalog
from app.db.engine import Reader, Session
from app.db.tables import tool_categories
from app.errors import Conflict, InvalidInput, NotFound
from app.text.suggestions import suggest_name

_MAX_SERVERS = 10

_MEMBERS = """
    tool_category_members m JOIN mcp_tool_embeddings v ON v.user_id = m.user_id AND v.tool_id = m.tool_id
"""
_LIST = f"""
    SELECT c.id, coalesce(c.own_name, c.name), c.own_name, c.words, visible.servers, visible.tools
    FROM (SELECT m.category_id, count(*) AS tools,
                 (array_agg(DISTINCT v.server_name ORDER BY v.server_name))[1:{_MAX_SERVERS}] AS servers
          FROM {_MEMBERS} WHERE m.user_id = %(user_id)s AND {VISIBLE} GROUP BY m.category_id) visible
    JOIN tool_categories c ON c.user_id = %(user_id)s AND c.id = visible.category_id
    ORDER BY visible.tools DESC, 2
"""
_NAMES = f"""
    SELECT c.id, coalesce(c.own_name, c.name) FROM tool_categories c
    WHERE c.user_id = %(user_id)s AND EXISTS (
        SELECT FROM {_MEMBERS} WHERE m.user_id = %(user_id)s AND m.category_id = c.id AND {VISIBLE})
    ORDER BY 2
"""
_HAS_TOOL = """
    SELECT EXISTS (
        SELECT FROM tool_category_members
        WHERE user_id = %(user_id)s AND tool_id = %(tool_id)s AND category_id = ANY(%(category_ids)s::text[]))
"""


@dataclass(frozen=True)
class CategorySummary:
    """A category with what the caller sees of it."""

    id: str
    name: str
    """The person's, or else the automatic one."""
    own_name: str | None
    words: Sequence[str]
    servers: Sequence[str]
    """The names of the first few servers of its tools."""
    tools: int


async def list_categories(reader: Reader, scope: Scope) -> list[CategorySummary]:
    """Return the categories that have a visible tool, those with the most tools first."""
    return [CategorySummary(*row) for row in await reader.rows(_LIST, scope.without_filters().parameters())]


async def get_category(reader: Reader, scope: Scope, category_id: str) -> CategorySummary:
    """Raise `NotFound` unless the category has a tool that is visible in the scope."""
    for category in await list_categories(reader, scope):
        if category.id == category_id:
            return category
    raise _not_found()


async def resolve_categories(reader: Reader, scope: Scope, given: Sequence[str]) -> list[str]:
    """Return the ids of categories that are given by id or name; upper and lower case are the same.

    Unknown ids are ignored, as those of servers are: a category may have vanished since a client has listed it. An
    unknown name is a mistake: raise `InvalidInput`, which says what there is.
    """
    found = [each for each in given if _is_id(each)]
    if len(found) == len(given):
        return found
    rows = await reader.rows(_NAMES, scope.without_filters().parameters())
    known = {name.casefold(): category_id for category_id, name in rows}
    for name in given:
        if not _is_id(name):
            if name.casefold() not in known:
                raise InvalidInput(_describe_unknown(name, [each for _, each in rows]))
            found.append(known[name.casefold()])
    return list(dict.fromkeys(found))


async def is_in_categories(reader: Reader, scope: Scope, tool_id: str) -> bool:
    """Whether the tool is in one of the scope's categories, if it has any."""
    if scope.category_ids is None:
        return True
    [(is_member,)] = await reader.rows(_HAS_TOOL, scope.parameters() | {"tool_id": tool_id})
    return bool(is_member)


async def rename_category(session: Session, user_id: str, category_id: str, name: str | None) -> None:
    """Give a category a name of the user's own; None restores the automatic one.

    Raise `Conflict` if another category of the user has the name.
    """
    c = tool_categories.c
    owned = c.user_id == user_id
    stored = (await session.execute(select(c.id, c.name, c.own_name).where(owned).with_for_update())).all()
    renamed = next((row for row in stored if row.id == category_id), None)
    if renamed is None:
        raise _not_found()
    new_name = (name or renamed.name).casefold()
    if any(new_name == (row.own_name or row.name).casefold() for row in stored if row.id != category_id):
        raise Conflict(f"another category is called {name or renamed.name!r}")
    await session.execute(update(tool_categories).where(owned, c.id == category_id).values(own_name=name))
    await bump_catalog(session, user_id)  # names are cached with its version


def _is_id(given: str) -> bool:
    with suppress(ValueError):
        return str(uuid.UUID(given)) == given
    return False


def _describe_unknown(name: str, known: Sequence[str]) -> str:
    if not known:
        return "there is no category of this name: no tools are in categories yet"
    suggestion = suggest_name(name, known)
    meant = "" if suggestion is None else f"did you mean {suggestion!r}? "
    return f"there is no category of this name; {meant}the categories are: {'; '.join(known)}"


def _not_found() -> NotFound:
    return NotFound("there is no such category")
