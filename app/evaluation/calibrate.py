"""The deed: a calibration for the active model, fitted to labelled messages over a catalogue."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from app.auth.users import User
from app.catalog.visibility import VISIBLE, Scope
from app.discovery.inline.documents import InlineTool
from app.discovery.inline.search import InlineSearcher, load_tool_set
from app.embeddings.base import Embedder, Vector, Vectors
from app.embeddings.calibration import Calibration
from app.errors import InvalidInput
from app.evaluation.evaluate import ProgressCallback
from app.evaluation.fit import ErrorRates, Sample, TrainingData, error_rates, fit_calibration
from app.evaluation.labelled import Labelled, read_labelled
from app.evaluation.resolver import make_resolver
from app.search.in_memory import IndexedTool, TenantIndex
from app.search.query import Query, parse_query
from app.search.searcher import Searcher

_MESSAGES = files("app.evaluation") / "messages"
_ROWS = f"""
    SELECT v.tool_id, v.server_name, v.tool_name, v.lexical, v.action, v.embedding
    FROM mcp_tool_embeddings v WHERE {VISIBLE} ORDER BY v.tool_id
"""


@dataclass(frozen=True)
class Fit:
    calibration: Calibration
    before: ErrorRates
    after: ErrorRates
    tools: int
    answerable: int
    unanswerable: int
    skipped: Sequence[str]
    """The ids of messages whose tools are not there."""


@dataclass(frozen=True)
class Messages:
    """That need a tool, and that need none, whatever the tools."""

    needing: Sequence[str]
    not_needing: Sequence[str]


def shipped_messages() -> Messages:
    return Messages(_lines("need_a_tool.txt"), _lines("need_none.txt"))


def shipped_labelled() -> list[Labelled]:
    """Our own, about the demo catalogue."""
    names = "queries.jsonl", "no_tool_queries.jsonl"
    return [item for name in names for item in read_labelled((_MESSAGES / "own" / name).read_bytes())]


async def tools_of_user(searcher: Searcher, user: User) -> TenantIndex:
    scope = Scope(user.id, searcher.model.id)
    async with searcher.database.snapshot(user.id) as session:
        rows = await session.rows(_ROWS, scope.parameters())
    vectors: list[Vector | None] = [None if row[5] is None else row[5].to_numpy() for row in rows]
    return TenantIndex.build([IndexedTool(*row[:5]) for row in rows]).with_vectors(vectors)


async def tools_in_memory(searcher: InlineSearcher, tools: Sequence[InlineTool]) -> TenantIndex:
    return (await load_tool_set(searcher, tools)).index


async def calibrate(
    searcher: Searcher, tools: TenantIndex, items: Sequence[Labelled], messages: Messages, told: ProgressCallback
) -> Fit:
    """Raises `EmbeddingFailed` where the embedder fails, and `InvalidInput` where there is nothing to fit to."""
    right = _right_tools(tools, items)
    material = await _material(searcher.models.serving.embedder, tools, items, right, messages, told)
    if not material.answerable:
        raise InvalidInput("none of the messages needs a tool of this catalogue")
    calibration = await asyncio.to_thread(fit_calibration, material)
    return Fit(
        calibration=calibration,
        before=await asyncio.to_thread(error_rates, material, searcher.model.calibration),
        after=await asyncio.to_thread(error_rates, material, calibration),
        tools=len(tools.tools),
        answerable=len(material.answerable),
        unanswerable=len(material.unanswerable),
        skipped=[item.id for item, keys in zip(items, right, strict=True) if item.tools and not keys],
    )


def _right_tools(tools: TenantIndex, items: Sequence[Labelled]) -> list[Sequence[str]]:
    """Their keys, for each message."""
    meaning = make_resolver((tool.tool_id, tool.server_name, tool.tool_name) for tool in tools.tools)
    return [[key for key in meaning.relevant(item.tools) if key in meaning.called] for item in items]


async def _material(
    embedder: Embedder,
    tools: TenantIndex,
    items: Sequence[Labelled],
    right: Sequence[Sequence[str]],
    messages: Messages,
    told: ProgressCallback,
) -> TrainingData:
    shipped = [parse_query(text) for text in (*messages.needing, *messages.not_needing)]
    vectors = await _embedded(embedder, [query.search_text for query in shipped], "messages", told)
    needing, not_needing = np.split(vectors, [len(messages.needing)])
    samples = await _samples(embedder, items, right, told)
    none_fits = [sample for item, sample in zip(items, samples, strict=True) if not item.tools]
    return TrainingData(
        tools=tools,
        needing=needing,
        not_needing=not_needing,
        answerable=[sample for sample in samples if sample.relevant],
        unanswerable=none_fits or _needing_none(shipped[len(messages.needing) :], not_needing),
    )


async def _samples(
    embedder: Embedder, items: Sequence[Labelled], right: Sequence[Sequence[str]], told: ProgressCallback
) -> list[Sample]:
    queries = [item.query for item in items]
    vectors = iter(await _embedded(embedder, [text for query in queries for text in query.texts], "labelled", told))
    return [
        Sample(query, [next(vectors) for _ in query.texts], keys) for query, keys in zip(queries, right, strict=True)
    ]


def _needing_none(queries: Sequence[Query], vectors: Vectors) -> list[Sample]:
    """Without their aims, of which there are no vectors."""
    pairs = zip(queries, vectors, strict=True)
    return [Sample(Query(query.user_text, query.search_text), [vector], ()) for query, vector in pairs]


async def _embedded(embedder: Embedder, texts: Sequence[str], what: str, told: ProgressCallback) -> Vectors:
    """The patient way, with its retries: a text's vector is the same by either."""
    made = []
    for start in range(0, len(texts), embedder.batch_size):
        batch = texts[start : start + embedder.batch_size]
        made.append(await embedder.embed_documents(batch))
        told(what, start + len(batch), len(texts))
    return np.vstack(made)


def _lines(name: str) -> list[str]:
    return [line for line in (_MESSAGES / name).read_text().splitlines() if line.strip()]
