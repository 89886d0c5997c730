"""Measure a model with the product's own ranking, in memory and without abstention.

A set is a catalogue of tools with labelled messages. Its words are indexed once; each model brings its vectors, and its
cosines are calibrated as the shipped calibration is: by the median cosine of tools and messages that need none, and by
the center of messages that need a tool.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from app.embeddings.base import Vectors
from app.embeddings.calibration import Calibration
from app.evaluation.calibrate import load_shipped_messages
from app.evaluation.fit import CENTER_SHRINKAGE
from app.evaluation.scores import score_ranking
from app.indexing.documents import lexical_vector
from app.search.glossary import Glossary
from app.search.in_memory import IndexedTool, TenantIndex
from app.search.intents import detect_tool_action
from app.search.query import Query
from app.search.ranking import sort_candidates
from app.search.scoring import ScoringParams
from bench.relevance.sets import DEVELOPMENT, OWN, PUBLIC, SETS, read_set, take_sample
from training.data import Data, Split, Tool, make_tool
from training.model import AdaptedModel

Embed = Callable[[Sequence[str]], Vectors]
Scores = npt.NDArray[np.float64]
"""One row per message: nDCG@10, hit@1, hit@8."""

_DIMENSION = 384
_SPLITS = {"pool": "validation", "test": "test"}
"""The split, by the first part of a catalogue's name."""


@dataclass(frozen=True)
class LabelledQuery:
    query: Query
    relevant: Sequence[str]


@dataclass(frozen=True)
class EvaluationSet:
    name: str
    tools: Sequence[Tool]
    index: TenantIndex
    queries: Sequence[LabelledQuery]


@dataclass(frozen=True)
class Embedders:
    """How a model embeds tools and messages. The two differ if it maps messages."""

    documents: Embed
    queries: Embed


def make_set(name: str, tools: Sequence[Tool], queries: Sequence[LabelledQuery]) -> EvaluationSet:
    indexed = [
        IndexedTool(
            tool.id,
            tool.server,
            tool.definition.name,
            lexical_vector(tool.definition, tool.server, _DIMENSION),
            int(detect_tool_action(tool.definition.name, tool.definition.description)),
        )
        for tool in tools
    ]
    return EvaluationSet(name, tools, TenantIndex.build(indexed), queries)


def read_development_sets(corpora: Path, glossary: Glossary, limit: int | None) -> list[EvaluationSet]:
    """Read the public sets and our own development sets; never the held-out ones."""
    folders = [*(corpora / name for name in PUBLIC), OWN, *(SETS / name for name in DEVELOPMENT)]
    sets = []
    for folder in folders:
        bench = take_sample(read_set(folder, corpora), limit)
        tools = [make_tool(tool.id, tool.server, tool.definition) for tool in bench.tools]
        queries = [LabelledQuery(glossary.expand(item.query), item.tools) for item in bench.items if item.tools]
        sets.append(make_set(bench.name, tools, queries))
    return sets


def make_catalogue_sets(data: Data, split: Split) -> list[EvaluationSet]:
    """Make a set of each catalogue of a split."""
    sets = []
    for catalogue in data.catalogues.values():
        if catalogue.split == split:
            messages = [each for each in data.select(split) if each.catalogue == catalogue.name]
            queries = [LabelledQuery(each.query, each.tools) for each in messages]
            sets.append(make_set(catalogue.name, catalogue.tools, queries))
    return sets


def make_model_embedders(model: AdaptedModel) -> Embedders:
    """Embed with the model as it is set now, each text once; in half precision, which is twice as fast."""
    known: dict[str, npt.NDArray[np.float32]] = {}

    def embed(texts: Sequence[str]) -> Vectors:
        if new := list(dict.fromkeys(text for text in texts if text not in known)):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                known.update(zip(new, model.embed(new), strict=True))
        return np.array([known[text] for text in texts], dtype=np.float32)

    return Embedders(embed, embed)


def merge_catalogues(scores: Mapping[str, Scores]) -> dict[str, Scores]:
    """Merge the scores of catalogues into one row for each split."""
    merged: dict[str, list[Scores]] = {}
    for name, rows in scores.items():
        merged.setdefault(_SPLITS.get(name.partition("-")[0], name), []).append(rows)
    return {name: np.vstack(rows) for name, rows in merged.items()}


def evaluate(sets: Iterable[EvaluationSet], embedders: Embedders) -> dict[str, Scores]:
    """Return the scores of each message, by set."""
    shipped = load_shipped_messages()
    needing, not_needing = embedders.queries(shipped.needing), embedders.queries(shipped.not_needing)
    return {each.name: evaluate_set(each, embedders, needing, not_needing) for each in sets}


def evaluate_set(each: EvaluationSet, embedders: Embedders, needing: Vectors, not_needing: Vectors) -> Scores:
    documents = embedders.documents([tool.text for tool in each.tools])
    index = each.index.with_vectors(list(documents))
    calibration = fit_cosines(documents, needing, not_needing)
    vectors = iter(embedders.queries([text for item in each.queries for text in item.query.texts]))
    rows = []
    for item in each.queries:
        own = [next(vectors) for _ in item.query.texts]
        ranked = rank(index, item.query, own, calibration)
        measures = score_ranking(ranked, item.relevant)
        hit_at_8 = not set(item.relevant).isdisjoint(ranked[:8])
        rows.append((measures.ndcg_at_10, measures.hit_at_1, float(hit_at_8)))
    return np.array(rows)


def rank(
    index: TenantIndex, query: Query, vectors: Sequence[npt.NDArray[np.float32]], calibration: Calibration
) -> list[str]:
    params = ScoringParams(query, "hybrid", threshold=0.0, calibration=calibration)
    candidates, weights = index.find_candidates(params, vectors)
    return [tool.candidate.tool_id for tool in sort_candidates(candidates, params, weights, vectors)[:10]]


def fit_cosines(documents: Vectors, needing: Vectors, not_needing: Vectors) -> Calibration:
    center = needing.mean(axis=0)
    length = float(np.linalg.norm(center))
    unrelated = float(np.median(documents @ not_needing.T))
    return Calibration(
        unrelated=unrelated,
        span=1 - unrelated,
        threshold=0.0,
        center=tuple((center / length).tolist()),
        center_unrelated=float(np.median(documents @ (center / length))),
        center_weight=CENTER_SHRINKAGE * length,
    )
