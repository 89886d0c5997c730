"""The result of each message, as a file that later versions are compared to, message by message.

`bench/results/messages-0.2.0.json` holds the results of version 0.2.0 (commit 1c99f8a), the last one without graded
confidence. It was made by that version's own code: its `index_set()` and `answer_message()`, once with `limit=8` and
once with `threshold=0, limit=10`, over the same sets, whose pool of tools was written to a `tools.jsonl` for each.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import orjson

from app.evaluation.scores import Interval, paired_interval, score_ranking
from app.search.confidence import Confidence

_DIGITS = 4


@dataclass(frozen=True)
class Scores:
    hit_at_1: float
    hit_at_8: float
    recall_at_5: float
    """The share of the relevant tools among the first five."""
    ndcg_at_10: float


@dataclass(frozen=True)
class MessageResult:
    """The answer to a message. The scores are None if the message needs no tool."""

    size: int
    """The number of tools in the answer as shipped."""
    confidence: Confidence | None
    """None before confidence was graded."""
    shipped: Scores | None
    ranking: Scores | None
    """Without abstention."""

    @property
    def is_empty(self) -> bool:
        return self.size == 0


_SCORES = tuple(field.name for field in fields(Scores))
_COLUMNS = ("size", "confidence", *_SCORES, *(f"ranking_{name}" for name in _SCORES))

Results = Mapping[str, MessageResult]
"""By the id of the message."""


@dataclass(frozen=True)
class Quality:
    """The means over messages that need tools and over messages that need none. None over no messages."""

    needing: int
    not_needing: int
    shipped: Scores | None
    ranking: Scores | None
    size: float | None
    empty: float | None
    """The share of the messages that need tools which got none."""
    low: float | None
    """The share of the messages that need tools whose answer has a low confidence."""
    toolless_size: float | None
    """The mean number of tools for messages that need none."""
    toolless_empty: float | None


@dataclass(frozen=True)
class Change:
    """The version before on the same messages, and the mean differences to it: now minus before."""

    before: Quality
    intervals: Mapping[str, Interval]


def score_answer(ranked: Sequence[str], relevant: Collection[str]) -> Scores:
    measures = score_ranking(ranked, relevant)
    hit_at_8 = float(any(key in relevant for key in ranked[:8]))
    return Scores(measures.hit_at_1, hit_at_8, measures.recall_at_5, measures.ndcg_at_10)


def summarize_results(results: Sequence[MessageResult]) -> Quality:
    needing = [result for result in results if result.shipped is not None]
    toolless = [result for result in results if result.shipped is None]
    return Quality(
        needing=len(needing),
        not_needing=len(toolless),
        shipped=_mean_scores([result.shipped for result in needing]),
        ranking=_mean_scores([result.ranking for result in needing]),
        size=_mean([result.size for result in needing]),
        empty=_mean([result.is_empty for result in needing]),
        low=_mean([result.confidence == "low" for result in needing if result.confidence is not None]),
        toolless_size=_mean([result.size for result in toolless]),
        toolless_empty=_mean([result.is_empty for result in toolless]),
    )


def compare_results(now: Results, before: Results) -> Change | None:
    """Compare two versions over the messages that both have answered; return None if there are none."""
    ids = [key for key in now if key in before]
    if not ids:
        return None
    rows = [(_list_values(before[key]), _list_values(now[key])) for key in ids]
    names = dict.fromkeys(name for _, values in rows for name in values)
    pairs = {name: [(old[name], new[name]) for old, new in rows if name in old and name in new] for name in names}
    intervals = {name: paired_interval(*zip(*values, strict=True)) for name, values in pairs.items() if values}
    return Change(summarize_results([before[key] for key in ids]), intervals)


def write_results(path: Path, results: Mapping[str, Results]) -> None:
    """Write the results of each set, one line for each message."""
    sets = {name: {key: _to_row(result) for key, result in each.items()} for name, each in results.items()}
    content = orjson.dumps({"columns": _COLUMNS, "sets": sets})
    path.write_bytes(content.replace(b"],", b"],\n") + b"\n")


def read_results(path: Path) -> dict[str, dict[str, MessageResult]]:
    """Read the results of each set; none if there is no such file."""
    if not path.exists():
        return {}
    sets = orjson.loads(path.read_bytes())["sets"]
    return {name: {key: _from_row(row) for key, row in rows.items()} for name, rows in sets.items()}


def _list_values(result: MessageResult) -> dict[str, float]:
    """Return what is compared between versions, by name."""
    if result.shipped is None or result.ranking is None:
        return {"toolless_size": result.size, "toolless_empty": result.is_empty}
    shipped = {name: getattr(result.shipped, name) for name in _SCORES}
    ranking = {f"ranking_{name}": getattr(result.ranking, name) for name in _SCORES}
    return {**shipped, **ranking, "size": result.size, "empty": result.is_empty}


def _to_row(result: MessageResult) -> list[Any]:
    scores = [astuple(each) for each in (result.shipped, result.ranking) if each is not None]
    return [result.size, result.confidence, *(round(value, _DIGITS) for each in scores for value in each)]


def _from_row(row: Sequence[Any]) -> MessageResult:
    size, confidence, *scores = row
    if not scores:
        return MessageResult(size, confidence, None, None)
    return MessageResult(size, confidence, Scores(*scores[: len(_SCORES)]), Scores(*scores[len(_SCORES) :]))


def _mean_scores(scores: Sequence[Scores | None]) -> Scores | None:
    rows = [astuple(each) for each in scores if each is not None]
    return Scores(*(math.fsum(column) / len(rows) for column in zip(*rows, strict=True))) if rows else None


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
