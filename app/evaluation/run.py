"""Run a labelled message through discovery, as a caller's request would be."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from app.auth.authentication import Caller
from app.discovery.discover import Ask, Discoverer, Discovery, discover
from app.discovery.request import Wishes, resolved
from app.evaluation.labelled import LabelledMessage
from app.evaluation.scores import Measures, score_ranking

DEFAULT_LIMIT = 10


@dataclass(frozen=True)
class EvalAnswer:
    """The answer to a message. `measures` is None if the message needs no tool: there is nothing to rank."""

    item: LabelledMessage
    ranked: Sequence[str]
    """Tool keys, best first."""
    measures: Measures | None
    no_match: bool
    tokens: int
    saved_percent: float
    degraded_reason: str | None
    duration_ms: float
    """Including the embedding of the message."""


async def answer_message(
    discoverer: Discoverer,
    caller: Caller,
    item: LabelledMessage,
    relevant: Collection[str],
    *,
    limit: int = DEFAULT_LIMIT,
    project_id: str | None = None,
    threshold: float | None = None,
) -> EvalAnswer:
    """`relevant` are the keys of the relevant tools. An entry that is not a key is never found."""
    ask = await ask_of(discoverer, caller, item, limit=limit, project_id=project_id)
    ask = ask if threshold is None else replace(ask, threshold=threshold)
    started = time.perf_counter()
    discovery = await discover(discoverer, caller.acting_for(), ask)
    duration_ms = (time.perf_counter() - started) * 1000
    ranked = [tool.offer.tool_id for tool in discovery.tools]
    return EvalAnswer(
        item=item,
        ranked=ranked,
        measures=score_ranking(ranked, relevant) if relevant else None,
        no_match=discovery.no_match,
        tokens=discovery.tokens_selected,
        saved_percent=_saved_percent(discovery),
        degraded_reason=discovery.degraded_reason,
        duration_ms=duration_ms,
    )


async def ask_of(
    discoverer: Discoverer, caller: Caller, item: LabelledMessage, *, limit: int, project_id: str | None
) -> Ask:
    """Leave out core tools: they are in every answer and say nothing about the search. Mark the request as a trial:
    an evaluation must not count as usage."""
    wishes = Wishes(item.query, project_id=project_id, limit=limit, include_core_tools=False, trial=True)
    return await resolved(discoverer, caller, wishes)


def _saved_percent(discovery: Discovery) -> float:
    total = discovery.tokens_all
    return max(100 * (1 - discovery.tokens_selected / total), 0.0) if total else 0.0
