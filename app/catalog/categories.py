"""The categories of a user's tools: list them with what is visible of each, find them by name, rename them.

`indexing/categories` makes them. They filter, and never decide what is visible. The filters of a request are applied in
Postgres, so that no search in memory depends on them.

Words and automatic names come from all of the user's tools. A project is shown only those that one of its own tools
has: the others would tell its keys about tools that they must not see. A name that a person gave is shown to all.
"""

import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pgvector import SparseVector
from sqlalchemy import select, update

from app.catalog.visibility import VISIBLE, Scope
from app.db.engine import Reader, Session
from app.db.tables import TERM_SPACE, tool_categories, tool_clusterings
from app.errors import Conflict, InvalidInput, NotFound
from app.text.suggestions import suggest_name

_MAX_SERVERS = 10
WORDS_IN_NAME = 2
_NUMBER = re.compile(r" \d+$")

_MEMBERS = """
    tool_category_members m JOIN mcp_tool_embeddings v ON v.user_id = m.user_id AND v.tool_id = m.tool_id
"""
_LIST = f"""
    SELECT c.id, coalesce(c.own_name, c.name), c.own_name, c.words, visible.servers, visible.tools, c.terms
    FROM (SELECT m.category_id, count(*) AS tools,
                 (array_agg(DISTINCT v.server_name ORDER BY v.server_name))[1:{_MAX_SERVERS}] AS servers
          FROM {_MEMBERS} WHERE m.user_id = %(user_id)s AND {VISIBLE} GROUP BY m.category_id) visible
    JOIN tool_categories c ON c.user_id = %(user_id)s AND c.id = visible.category_id
    ORDER BY visible.tools DESC, 2
"""
_NAMES = f"""
    SELECT c.id, coalesce(c.own_name, c.name) FROM tool_categories c
    WHERE c.user_id = %(user_id)s AND EXISTS (
        SELECT 1 FROM {_MEMBERS} WHERE m.user_id = %(user_id)s AND m.category_id = c.id AND {VISIBLE})
    ORDER BY 2
"""
_FIND_TERMS = f"""
    SELECT asked.position::int FROM unnest(%(asked_ids)s::text[], %(terms)s::sparsevec[])
        WITH ORDINALITY AS asked (category_id, term, position)
    WHERE EXISTS (
        SELECT 1 FROM {_MEMBERS}
        WHERE m.user_id = %(user_id)s AND m.category_id = asked.category_id
          AND (v.lexical <#> asked.term) < 0 AND {VISIBLE})
"""
_REVISION = "SELECT revision FROM tool_clusterings WHERE user_id = %(user_id)s"
_HAS_TOOL = """
    SELECT EXISTS (
        SELECT 1 FROM tool_category_members
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
    scope = scope.without_filters()
    rows = await reader.rows(_LIST, scope.parameters())
    categories = [CategorySummary(*columns) for *columns, _ in rows]
    if scope.project_id is None:
        return categories
    return await _hide_words_of_others(reader, scope, categories, [terms for *_, terms in rows])


async def _hide_words_of_others(
    reader: Reader, scope: Scope, categories: Sequence[CategorySummary], terms: Sequence[Mapping[str, Sequence[int]]]
) -> list[CategorySummary]:
    """Leave out words that no visible tool of the category has. `terms` are the search terms of each one's words."""
    asked = [
        (each.id, term_id)
        for each, known in zip(categories, terms, strict=True)
        for term_id in sorted({term_id for ids in known.values() for term_id in ids})
    ]
    parameters = {
        "asked_ids": [category_id for category_id, _ in asked],
        "terms": [SparseVector({term_id: 1.0}, TERM_SPACE) for _, term_id in asked],
    }
    rows = await reader.rows(_FIND_TERMS, scope.parameters() | parameters) if asked else []
    found = {asked[position - 1] for (position,) in rows}
    return [
        _show_words(each, {word for word, ids in known.items() if all((each.id, term_id) in found for term_id in ids)})
        for each, known in zip(categories, terms, strict=True)
    ]


def _show_words(category: CategorySummary, visible: Collection[str]) -> CategorySummary:
    """Return the category with visible words only. Without any, it has the name of a server of its visible tools."""
    words = [word for word in category.words if word in visible]
    name = category.name
    if category.own_name is None and not all(part in visible for part in split_name(name)):
        name = ", ".join(words[:WORDS_IN_NAME]) or category.servers[0]
    return replace(category, name=name, words=words)


def split_name(name: str) -> list[str]:
    """Return the words and phrases of an automatic name, without the number that makes it unique."""
    return [part for part in _NUMBER.sub("", name).split(", ") if part]


async def read_revision(reader: Reader, user_id: str) -> int:
    """Return a number that changes with every change of the user's categories and their names; 0 without any."""
    return next((int(revision) for (revision,) in await reader.rows(_REVISION, {"user_id": user_id})), 0)


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
    names = await read_names(reader, scope)
    for name in given:
        if not _is_id(name):
            ids = find_by_name(names, name)
            if not ids:
                raise InvalidInput(_describe_unknown(name, list(dict.fromkeys(names.values()))))
            found += ids
    return list(dict.fromkeys(found))


async def read_names(reader: Reader, scope: Scope) -> dict[str, str]:
    """Return the names of the categories that have a visible tool, by id, in alphabetical order."""
    if scope.project_id is None:
        return dict(await reader.rows(_NAMES, scope.without_filters().parameters()))
    categories = await list_categories(reader, scope)
    return {each.id: each.name for each in sorted(categories, key=lambda each: each.name)}


def find_by_name(names: Mapping[str, str], given: str) -> list[str]:
    """Return the ids of the categories of this name, in any case. In a project, several may have the same one."""
    return [category_id for category_id, name in names.items() if name.casefold() == given.casefold()]


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
    # first, as those who make categories lock it first: a run that does not know the name yet is discarded
    clusterings, c = tool_clusterings.c, tool_categories.c
    revised = update(tool_clusterings).where(clusterings.user_id == user_id)
    await session.execute(revised.values(revision=clusterings.revision + 1))
    owned = c.user_id == user_id
    stored = (await session.execute(select(c.id, c.name, c.own_name).where(owned).with_for_update())).all()
    renamed = next((row for row in stored if row.id == category_id), None)
    if renamed is None:
        raise _not_found()
    new_name = (name or renamed.name).casefold()
    if any(new_name == (row.own_name or row.name).casefold() for row in stored if row.id != category_id):
        raise Conflict(f"another category is called {name or renamed.name!r}")
    await session.execute(update(tool_categories).where(owned, c.id == category_id).values(own_name=name))


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
