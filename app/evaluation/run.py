"""Run a labelled message through discovery, as a caller's request would be."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from app.auth.permissions import Caller
from app.discovery.discover import Discoverer, discover
from app.discovery.models import Discovery
from app.discovery.request import DiscoveryRequest
from app.evaluation.labelled_messages import LabelledMessage
from app.evaluation.scores import Measures, score_ranking
from app.search.confidence import Confidence

DEFAULT_LIMIT = 10


@dataclass(frozen=True)
class EvalAnswer:
    """The answer to a message. `measures` is None if the message needs no tool: there is nothing to rank."""

    item: LabelledMessage
    ranked: Sequence[str]
    """Tool keys, best first."""
    measures: Measures | None
    confidence: Confidence
    tokens: int
    saved_percent: float
    degraded_reason: str | None
    duration_ms: float
    """Including the embedding of the message."""

    @property
    def no_match(self) -> bool:
        return self.confidence == "none"


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
    request = make_request(item, limit=limit, project_id=project_id, threshold=threshold)
    started = time.perf_counter()
    discovery = await discover(discoverer, caller, request)
    duration_ms = (time.perf_counter() - started) * 1000
    ranked = [tool.definition.tool_id for tool in discovery.tools]
    return EvalAnswer(
        item=item,
        ranked=ranked,
        measures=score_ranking(ranked, relevant) if relevant else None,
        confidence=discovery.confidence,
        tokens=discovery.tokens_selected,
        saved_percent=_saved_percent(discovery),
        degraded_reason=discovery.degraded_reason,
        duration_ms=duration_ms,
    )


def make_request(
    item: LabelledMessage, *, limit: int, project_id: str | None, threshold: float | None = None
) -> DiscoveryRequest:
    """Return the request for a labelled message.

    Core tools are left out: every answer includes them, so they say nothing about the search. It is a dry run: an
    evaluation must not be counted as a user's message.
    """
    return DiscoveryRequest(
        item.query,
        project_id=project_id,
        limit=limit,
        threshold=threshold,
        include_core_tools=False,
        dry_run=True,
    )


def _saved_percent(discovery: Discovery) -> float:
    total = discovery.tokens_all
    return max(100 * (1 - discovery.tokens_selected / total), 0.0) if total else 0.0
