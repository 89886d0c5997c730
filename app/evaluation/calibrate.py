"""Use cases: fit a calibration to labelled messages over a set of tools, for the active model or for one user."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

import numpy as np

from app.auth.users import User
from app.catalog.tool_keys import KeyedTool
from app.catalog.visibility import VISIBLE, Scope
from app.discovery.inline.documents import InlineTool
from app.discovery.inline.search import InlineSearcher, load_tool_set
from app.embeddings.base import Embedder, Vector, Vectors
from app.embeddings.calibration import Calibration, UserCalibration
from app.errors import InvalidInput
from app.evaluation.evaluate import ProgressCallback
from app.evaluation.fit import (
    ErrorRates,
    LabelledCatalog,
    Sample,
    TrainingData,
    error_rates,
    fit_calibration,
    fit_user_calibration,
)
from app.evaluation.label_resolver import make_resolver
from app.evaluation.labelled_messages import LabelledMessage, parse_labelled_messages
from app.search.in_memory import IndexedTool, TenantIndex
from app.search.query import Query, parse_query
from app.search.searcher import Searcher

_MESSAGES = files("app.evaluation") / "messages"
_SELECT_TOOLS = f"""
    SELECT v.tool_id, v.server_name, v.tool_name, v.lexical, v.action, v.embedding
    FROM mcp_tool_embeddings v WHERE {VISIBLE} ORDER BY v.tool_id
"""


@dataclass(frozen=True)
class CalibrationResult:
    calibration: Calibration
    own: UserCalibration | None
    """What is stored for the user; None if the calibration is the model's."""
    before: ErrorRates
    after: ErrorRates
    tools: int
    answerable: int
    unanswerable: int
    skipped: Sequence[str]
    """The ids of messages whose tools do not exist."""


@dataclass(frozen=True)
class Messages:
    """Messages that need a tool and messages that need none, independent of any catalogue."""

    needing: Sequence[str]
    not_needing: Sequence[str]


def load_shipped_messages() -> Messages:
    return Messages(_read_lines("need_a_tool.txt"), _read_lines("need_none.txt"))


def load_shipped_labelled() -> list[LabelledMessage]:
    """Return the labelled messages that ship with Toolscout, about the demo catalogue."""
    names = "queries.jsonl", "no_tool_queries.jsonl"
    return [item for name in names for item in parse_labelled_messages((_MESSAGES / "own" / name).read_bytes())]


async def load_user_tools(searcher: Searcher, user: User) -> TenantIndex:
    scope = Scope(user.id, searcher.model.id)
    async with searcher.database.snapshot(user.id) as session:
        rows = await session.rows(_SELECT_TOOLS, scope.parameters())
    vectors: list[Vector | None] = [None if row[5] is None else row[5].to_numpy() for row in rows]
    return TenantIndex.build([IndexedTool(*row[:5]) for row in rows]).with_vectors(vectors)


async def index_tools(searcher: InlineSearcher, tools: Sequence[InlineTool]) -> TenantIndex:
    return (await load_tool_set(searcher, tools)).index


async def calibrate(
    searcher: Searcher,
    tools: TenantIndex,
    items: Sequence[LabelledMessage],
    messages: Messages,
    on_progress: ProgressCallback,
    *,
    for_user: bool = False,
) -> CalibrationResult:
    """Fit the model's calibration or, with `for_user`, the values that replace some of it for one user.

    Raise `EmbeddingFailed` if the embedder fails, and `InvalidInput` if no message needs one of the tools or if the
    values of a user have no model's calibration to start from.
    """
    model = searcher.model
    if for_user and not model.calibration.is_fitted:
        raise InvalidInput(f"{model.id} is not calibrated: run `toolscout calibrate` for all users first")
    relevant = _resolve_labels(tools, items)
    data = await _load_training_data(searcher, tools, items, relevant, messages, on_progress)
    [catalog] = data.catalogs
    if not catalog.answerable:
        raise InvalidInput("none of the messages needs a tool of this catalogue")
    own: UserCalibration | None = None
    if for_user:
        own = await asyncio.to_thread(fit_user_calibration, catalog, model.calibration, model.id)
        calibration = model.calibration.personalize(own)
    else:
        calibration = await asyncio.to_thread(fit_calibration, data)
    return CalibrationResult(
        calibration=calibration,
        own=own,
        before=await asyncio.to_thread(error_rates, data, model.calibration),
        after=await asyncio.to_thread(error_rates, data, calibration),
        tools=len(tools.names),
        answerable=len(catalog.answerable),
        unanswerable=len(catalog.unanswerable),
        skipped=[item.id for item, keys in zip(items, relevant, strict=True) if item.tools and not keys],
    )


def _resolve_labels(tools: TenantIndex, items: Sequence[LabelledMessage]) -> list[Sequence[str]]:
    """Return the keys of the relevant tools of each message."""
    names = zip(tools.names.tool_ids, tools.names.server_names, tools.names.tool_names, strict=True)
    resolver = make_resolver(KeyedTool(tool_id, None, server, name) for tool_id, server, name in names)
    return [[key for key in resolver.resolve(item.tools) if key in resolver.names] for item in items]


async def _load_training_data(
    searcher: Searcher,
    tools: TenantIndex,
    items: Sequence[LabelledMessage],
    relevant: Sequence[Sequence[str]],
    messages: Messages,
    on_progress: ProgressCallback,
) -> TrainingData:
    shipped = [searcher.glossary.expand(parse_query(text)) for text in (*messages.needing, *messages.not_needing)]
    texts = [query.search_text for query in shipped]
    vectors = await _embed(searcher.models.current.embedder, texts, "messages", on_progress)
    needing, not_needing = np.split(vectors, [len(messages.needing)])
    samples = await make_samples(searcher, items, relevant, on_progress)
    unanswerable = [sample for item, sample in zip(items, samples, strict=True) if not item.tools]
    catalog = LabelledCatalog(
        tools=tools,
        answerable=[sample for sample in samples if sample.relevant],
        unanswerable=unanswerable or _make_unlabelled_samples(shipped[len(messages.needing) :], not_needing),
    )
    return TrainingData([catalog], needing, not_needing)


async def make_samples(
    searcher: Searcher,
    items: Sequence[LabelledMessage],
    relevant: Sequence[Sequence[str]],
    on_progress: ProgressCallback,
) -> list[Sample]:
    """Embed labelled messages; `relevant` are the keys of the relevant tools of each."""
    queries = [searcher.glossary.expand(item.query) for item in items]
    texts = [text for query in queries for text in query.texts]
    vectors = iter(await _embed(searcher.models.current.embedder, texts, "labelled", on_progress))
    return [
        Sample(query, [next(vectors) for _ in query.texts], keys) for query, keys in zip(queries, relevant, strict=True)
    ]


def _make_unlabelled_samples(queries: Sequence[Query], vectors: Vectors) -> list[Sample]:
    """Make samples of messages that need no tool. Their subqueries are dropped, as these have no vectors."""
    pairs = zip(queries, vectors, strict=True)
    return [Sample(replace(query, subqueries=()), [vector], ()) for query, vector in pairs]


async def _embed(embedder: Embedder, texts: Sequence[str], label: str, on_progress: ProgressCallback) -> Vectors:
    """Embed as documents, which are retried: a text has the same vector as a query and as a document."""
    batches = []
    for start in range(0, len(texts), embedder.batch_size):
        batch = texts[start : start + embedder.batch_size]
        batches.append(await embedder.embed_documents(batch))
        on_progress(label, start + len(batch), len(texts))
    return np.vstack(batches)


def _read_lines(name: str) -> list[str]:
    return [line for line in (_MESSAGES / name).read_text().splitlines() if line.strip()]
