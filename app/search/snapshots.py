"""Snapshots: a user's visible tools in memory, so that most searches need no database.

A snapshot holds what a search in one scope (a user, a model, a project or none) needs: vectors, terms, tags, ready
definitions, core tools, the project. It is valid for one version of the user's catalogue. Every request reads the
current version when it is authenticated, so that a change by any process is seen by the next request. What is learnt
from outcomes has a version of its own (`learned.py`).

`snapshot_cache.py` decides which snapshots are held. A load is one statement in the user's own transaction: row-level
security applies to it as to every search.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from app.catalog.definitions import (
    CORE_COLUMNS,
    CORE_SOURCE,
    HAS_TOOLS,
    TOOL_COLUMNS,
    TOOL_SOURCE,
    DefinitionSet,
    ToolDefinitionView,
    to_view,
    unique_by_name,
)
from app.catalog.projects import Project, project_from_json
from app.catalog.tool_keys import KeyedTool, ToolKeyIndex, list_possible_names
from app.catalog.visibility import TAGS, VISIBLE, Scope
from app.db.engine import Session
from app.db.tables import EVERYONE
from app.embeddings.base import Vector, Vectors
from app.search.candidates import scale_to_unit
from app.search.in_memory import TenantIndex, ToolNames
from app.search.learned import NOTHING_LEARNED, Learned
from app.search.named_tags import MAX_TAGS, TagTerms, find_named_tags, make_tag_terms
from app.search.pgvector_binary import SparseElements, decode_halfvecs, decode_sparsevecs
from app.search.postings import Postings
from app.search.query import Query
from app.search.ranking import Ranking
from app.search.scoring import ScoringParams

_TOOLS_PER_ROW = 1_000
"""So that no single step of a load takes long."""
_MAX_VIEWS = 512
_VIEW_BYTES = 3
"""A definition that was read from its stored form takes about this many times the bytes."""
_SNAPSHOT_BYTES = 10_000
_TAG_BYTES = 500

# All aggregates of a row see the tools in the same order, whichever that is.
_LOAD = f"""
    SELECT v.*, CASE WHEN coalesce(v.number, 0) = 0 THEN json_build_array(
        u.catalog_version, ({HAS_TOOLS}),
        (SELECT row_to_json(p) FROM projects p WHERE p.user_id = %(user_id)s AND p.id = %(project_id)s),
        (SELECT coalesce(json_agg(json_build_array({CORE_COLUMNS}) ORDER BY c.user_id, c.position), '[]'::json)
         FROM {CORE_SOURCE}))::text END
    FROM users u LEFT JOIN (
        SELECT number, string_agg(halfvec_send(embedding), ''::bytea), max(vector_dims(embedding)),
               string_agg(CASE WHEN embedding IS NULL THEN '\\x00'::bytea ELSE '\\x01'::bytea END, ''::bytea),
               string_agg(sparsevec_send(lexical), ''::bytea), string_agg(int2send(action), ''::bytea),
               sum(tokens), string_agg(definition, ''::bytea),
               string_agg(int4send(octet_length(definition)), ''::bytea),
               json_agg(json_build_array(tool_id, server_id, server_name, tool_name, tags))::text
        FROM (
            SELECT v.tool_id, v.server_id, v.server_name, v.tool_name, v.embedding, v.lexical, v.action, v.tokens,
                   {TAGS} AS tags, convert_to(json_build_array({TOOL_COLUMNS})::text, 'UTF8') AS definition,
                   (row_number() OVER () - 1) / {_TOOLS_PER_ROW} AS number
            FROM {TOOL_SOURCE} WHERE {VISIBLE}
        ) tool
        GROUP BY number
    ) v ON true
    WHERE u.id = %(user_id)s
"""


@dataclass(frozen=True)
class _Part:
    """Some of the tools of a scope."""

    vectors: Vectors | None
    has_vector: npt.NDArray[np.bool_]
    elements: SparseElements
    actions: npt.NDArray[np.int16]
    tokens: int
    definitions: bytes
    sizes: npt.NDArray[np.int64]
    """Of the definitions."""
    names: Sequence[tuple[str, str, str, str, list[str]]]

    @property
    def memory_bytes(self) -> int:
        vectors = 0 if self.vectors is None else self.vectors.nbytes
        return vectors + self.elements.rows.nbytes + self.elements.values.nbytes + len(self.definitions)


class Definitions:
    """The definitions of all tools as JSON, which is read for the few tools of an answer."""

    def __init__(self, stored: Sequence[bytes], sizes: npt.NDArray[np.int64]) -> None:
        self._stored = b"".join(stored)
        self._ends = np.cumsum(sizes)
        self._sizes = sizes
        self._views: OrderedDict[int, ToolDefinitionView] = OrderedDict()

    @property
    def memory_bytes(self) -> int:
        average = len(self._stored) / max(1, len(self._sizes))
        views = _VIEW_BYTES * average * min(len(self._sizes), _MAX_VIEWS)
        return len(self._stored) + self._ends.nbytes + self._sizes.nbytes + int(views)

    def get(self, row: int) -> ToolDefinitionView:
        view = self._views.get(row)
        if view is None:
            end = int(self._ends[row])
            view = to_view(orjson.loads(self._stored[end - int(self._sizes[row]) : end]))
            self._views[row] = view
            if len(self._views) > _MAX_VIEWS:
                self._views.popitem(last=False)
        return view


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The visible tools of a scope at one version of the user's catalogue."""

    version: int
    index: TenantIndex
    definitions: Definitions
    tokens: int
    """Of all definitions together."""
    core: Sequence[ToolDefinitionView]
    project: Project | None
    has_tools: bool
    """Whether the user has any tool, visible or not."""
    tag_terms: TagTerms
    memory_bytes: int
    """What it takes in memory."""
    learned: Learned = NOTHING_LEARNED

    @property
    def searched(self) -> int:
        return len(self.index.names)

    def with_learned(self, learned: Learned) -> "Snapshot":
        """Return the snapshot with what is learnt from outcomes. It shares everything else."""
        priors = np.zeros(self.searched)
        rows = self.index.names.rows
        for tool_id, prior in learned.priors.items():
            if (row := rows.get(tool_id)) is not None:
                priors[row] = prior
        return replace(self, learned=learned, index=self.index.with_priors(priors))

    def find(self, params: ScoringParams, vectors: Sequence[Vector] | None, limit: int) -> Ranking:
        """Return the best hits, as `HybridSearch.find` does."""
        if params.strategy != "semantic" and self.tag_terms:
            named_tags = find_named_tags(params.query.search_text, self.tag_terms)
            params = replace(params, named_tags=named_tags) if named_tags else params
        return self.index.rank_best(params, vectors, limit, self.learned)[1]

    def get_definitions(self, tool_ids: Sequence[str], *, core: bool) -> DefinitionSet:
        """Return those of the tools that are visible and, with `core`, the core tools."""
        rows = self.index.names.rows
        known = {tool_id: self.definitions.get(rows[tool_id]) for tool_id in tool_ids if tool_id in rows}
        return DefinitionSet(known, self.core if core else (), self.version)

    def resolve_keys(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the ids of the visible tools and core tools that the keys name; see `tool_keys.resolve_keys`."""
        names, possible = self.index.names, {name for key in keys for name in list_possible_names(key)}
        rows = [row for name in possible for row in names.by_name.get(name.lower(), ())]
        tools = [
            KeyedTool(names.tool_ids[row], names.servers[row], names.server_names[row], names.tool_names[row])
            for row in dict.fromkeys(rows)
        ]
        core = [KeyedTool(tool.tool_id, None, None, tool.name) for tool in self.core]
        return ToolKeyIndex([*tools, *core]).resolve_keys(keys)

    def find_matching_words(self, query: Query, tool_ids: Sequence[str]) -> dict[str, Sequence[str]]:
        """Return the query's words that each of the tools contains, by id, without those that are not visible."""
        rows = self.index.names.rows
        return {each: self.index.find_matching_words(query, each) for each in tool_ids if each in rows}


async def read_snapshot(session: Session, scope: Scope, max_bytes: int) -> Snapshot | None:
    """Read the scope. Return None if it takes more than `max_bytes` in memory, or if it no longer exists.

    The event loop is free while the rows are decoded.
    """
    header, parts, size = "", list[_Part](), 0
    async for number, *columns, part_header in session.stream(_LOAD, scope.parameters() | {"everyone": EVERYONE}):
        header = part_header or header
        if number is not None:
            part = await asyncio.to_thread(_decode_part, columns)
            parts.append(part)
            size += part.memory_bytes
        if size > max_bytes:
            return None
    if not header:
        return None
    snapshot = await asyncio.to_thread(_assemble, parts, header)
    is_deleted = scope.project_id is not None and snapshot.project is None
    return None if is_deleted or snapshot.memory_bytes > max_bytes else snapshot


def _decode_part(columns: Sequence[Any]) -> _Part:
    embeddings, dimension, has_vector, lexical, actions, tokens, definitions, sizes, names = columns
    return _Part(
        None if embeddings is None else scale_to_unit(decode_halfvecs(embeddings, dimension)),
        np.frombuffer(has_vector, np.bool_),
        decode_sparsevecs(lexical),
        np.frombuffer(actions, ">i2").astype(np.int16),
        int(tokens),
        definitions,
        np.frombuffer(sizes, ">i4").astype(np.int64),
        orjson.loads(names),
    )


def _assemble(parts: Sequence[_Part], header: str) -> Snapshot:
    version, has_tools, project, core = orjson.loads(header)
    names = _join_names(name for part in parts for name in part.names)
    vectors, has_vector = _join_vectors(parts)
    index = TenantIndex(
        names,
        np.concatenate([part.actions for part in parts] or [np.zeros(0, np.int16)]),
        Postings.build(_join_elements(parts), len(names)),
        np.zeros(len(names)),
        vectors,
        has_vector,
    )
    definitions = Definitions(
        [part.definitions for part in parts], np.concatenate([part.sizes for part in parts] or [np.zeros(0, np.int64)])
    )
    core_tools = unique_by_name(map(to_view, core))
    tag_terms = make_tag_terms(sorted(names.by_tag)[:MAX_TAGS])
    size = index.memory_bytes + definitions.memory_bytes + _TAG_BYTES * len(names.by_tag) + len(header)
    return Snapshot(
        version,
        index,
        definitions,
        sum(part.tokens for part in parts),
        core_tools,
        None if project is None else project_from_json(project),
        has_tools,
        tag_terms,
        _SNAPSHOT_BYTES + size,
    )


def _join_names(tools: Iterable[tuple[str, str, str, str, list[str]]]) -> ToolNames:
    """Hold the names of servers and tags, which many tools share, once."""
    servers: dict[str, str] = {}
    tags: dict[tuple[str, ...], tuple[str, ...]] = {}
    rows = [
        (
            tool_id,
            servers.setdefault(server_id, server_id),
            servers.setdefault(server_name, server_name),
            tool_name,
            tags.setdefault(tuple(tool_tags), tuple(tool_tags)),
        )
        for tool_id, server_id, server_name, tool_name, tool_tags in tools
    ]
    names = ToolNames(*map(list, zip(*rows, strict=True))) if rows else ToolNames([], [], [], [], [])
    names.prepare()
    return names


def _join_vectors(parts: Sequence[_Part]) -> tuple[Vectors | None, npt.NDArray[np.bool_] | None]:
    """Return the vectors of all tools, and which tools have one; None if all or none have."""
    known = [part.vectors for part in parts if part.vectors is not None]
    if not known:
        return None, None
    has_vector = np.concatenate([part.has_vector for part in parts])
    if has_vector.all():
        return np.concatenate(known), None
    vectors = np.zeros((len(has_vector), known[0].shape[1]), np.float32)
    vectors[has_vector] = np.concatenate(known)
    return vectors, has_vector


def _join_elements(parts: Sequence[_Part]) -> SparseElements:
    """Number the tools of all parts one after another."""
    if not parts:
        return SparseElements(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32))
    starts = np.cumsum([0, *(len(part.actions) for part in parts[:-1])]).tolist()
    return SparseElements(
        np.concatenate([part.elements.rows + start for part, start in zip(parts, starts, strict=True)]).astype(
            np.int32
        ),
        np.concatenate([part.elements.indices for part in parts]),
        np.concatenate([part.elements.values for part in parts]),
    )
