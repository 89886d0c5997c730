"""A labelled message through the product's own discovery, as a caller would ask it."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from app.auth.authentication import Caller
from app.discovery.discover import Discoverer, Discovery, discover
from app.discovery.request import DiscoveryRequest
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
    request = make_request(asked, limit=limit, project_id=project_id, threshold=threshold)
    started = time.perf_counter()
    discovery = await discover(discoverer, caller, request)
    took_ms = (time.perf_counter() - started) * 1000
    ranked = [tool.definition.tool_id for tool in discovery.tools]
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


def make_request(
    asked: Labelled, *, limit: int, project_id: str | None, threshold: float | None = None
) -> DiscoveryRequest:
    """Return the request for a labelled message.

    Core tools are left out: every answer includes them, so they say nothing about the search. It is a dry run: an
    evaluation must not be counted as a user's message.
    """
    return DiscoveryRequest(
        asked.query,
        project_id=project_id,
        limit=limit,
        threshold=threshold,
        include_core_tools=False,
        dry_run=True,
    )


def _saved_percent(discovery: Discovery) -> float:
    everything = discovery.tokens_all
    return max(100 * (1 - discovery.tokens_selected / everything), 0.0) if everything else 0.0
