"""A labelled message through the product's own discovery, as a caller would ask it."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from app.auth.permissions import Caller
from app.discovery.discover import Ask, Discoverer, Discovery, discover
from app.discovery.request import Wishes, resolved
from app.evaluation.labelled import Labelled
from app.evaluation.scores import Measures, measure

DEFAULT_LIMIT = 10


@dataclass(frozen=True)
class EvalAnswer:
    """What came back for a message. `measures` is missing where no tool was needed: there is nothing to rank."""

    asked: Labelled
    ranked: Sequence[str]
    """Tool keys, the best first."""
    measures: Measures | None
    no_match: bool
    tokens: int
    saved_percent: float
    degraded_reason: str | None
    duration_ms: float
    """With the embedding of the message."""


async def answer_message(
    discoverer: Discoverer,
    caller: Caller,
    asked: Labelled,
    relevant: Collection[str],
    *,
    limit: int = DEFAULT_LIMIT,
    project_id: str | None = None,
    threshold: float | None = None,
) -> EvalAnswer:
    """`relevant`: the keys of the tools that are right. What stands there and is no key is never found."""
    ask = await ask_of(discoverer, caller, asked, limit=limit, project_id=project_id)
    ask = ask if threshold is None else replace(ask, threshold=threshold)
    started = time.perf_counter()
    discovery = await discover(discoverer, caller.require_user(), ask)
    took_ms = (time.perf_counter() - started) * 1000
    ranked = [tool.offer.tool_id for tool in discovery.tools]
    return EvalAnswer(
        asked=asked,
        ranked=ranked,
        measures=measure(ranked, relevant) if relevant else None,
        no_match=discovery.no_match,
        tokens=discovery.tokens_selected,
        saved_percent=_saved_percent(discovery),
        degraded_reason=discovery.degraded_reason,
        duration_ms=took_ms,
    )


async def ask_of(discoverer: Discoverer, caller: Caller, asked: Labelled, *, limit: int, project_id: str | None) -> Ask:
    """Without core tools: they are in every answer, so they tell nothing of the search. And only on trial: a question
    of ours teaches nothing about what people ask."""
    wishes = Wishes(asked.query, project_id=project_id, limit=limit, include_core_tools=False, trial=True)
    return await resolved(discoverer, caller, wishes)


def _saved_percent(discovery: Discovery) -> float:
    everything = discovery.tokens_all
    return max(100 * (1 - discovery.tokens_selected / everything), 0.0) if everything else 0.0
