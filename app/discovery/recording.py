"""Record what a discovery has found: metrics, usage, the logs, and what can be learnt from it later."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from app.auth.permissions import Caller
from app.discovery.models import Discovery
from app.discovery.request import DiscoveryRequest
from app.observability.logging import request_id
from app.observability.metrics import Metrics, fallback_level, fallback_reason
from app.search.language import ENGLISH
from app.search.query import shorten
from app.usage.choices import Choice
from app.usage.counters import DiscoverySample, UsageCounters
from app.usage.decision_log import Decision, DecisionLog
from app.usage.learning import Learner
from app.usage.selection_log import Selection, SelectionLog


@dataclass(frozen=True)
class DiscoveryRecorder:
    metrics: Metrics
    usage_counters: UsageCounters
    selections: SelectionLog
    decisions: DecisionLog
    learner: Learner

    def record(self, caller: Caller, request: DiscoveryRequest, discovery: Discovery, seconds: float) -> None:
        """Count the discovery and log it, with its message if the user has switched the selection log on."""
        user = caller.require_user()
        if discovery.embedding is None:
            self.metrics.discoveries.labels("none", "core").inc()
        else:
            self._count(user.id, discovery, seconds)
            if user.settings.get("selection_log"):
                self.selections.append(_make_selection(user.id, request, discovery))
        if discovery.vector is not None and discovery.options.learned:
            tool_ids = [tool.definition.tool_id for tool in discovery.tools if tool.source != "core"]
            self.learner.record_discovery(
                user.id, discovery.id, discovery.options.scope.model, discovery.vector, tool_ids
            )
        if self.decisions.enabled:
            self.decisions.append(_make_decision(caller, request, discovery, seconds))

    def _count(self, user_id: str, discovery: Discovery, seconds: float) -> None:
        metrics, reason = self.metrics, discovery.degraded_reason
        metrics.discoveries.labels(discovery.strategy or "none", fallback_level(reason)).inc()
        if reason is not None:
            metrics.fallbacks.labels(fallback_reason(reason)).inc()
        metrics.discovery_confidence.labels(discovery.confidence).inc()
        if discovery.no_match_reason is not None:
            metrics.no_match.labels(discovery.no_match_reason).inc()
        metrics.tokens_saved.inc(max(discovery.tokens_all - discovery.tokens_selected, 0))
        is_embedded = discovery.strategy in ("hybrid", "semantic")
        sample = DiscoverySample(
            seconds=seconds,
            degraded=reason is not None,
            no_match=discovery.no_match,
            cache_hit=reason is None and is_embedded and not discovery.embedding_generated,
            tokens_all=discovery.tokens_all,
            tokens_selected=discovery.tokens_selected,
            not_english=discovery.query.language != ENGLISH,
        )
        found = (tool.definition.tool_id for tool in discovery.tools if tool.source in ("semantic", "lexical"))
        self.usage_counters.record_discovery(user_id, found, sample)


def _make_selection(user_id: str, request: DiscoveryRequest, discovery: Discovery) -> Selection:
    return Selection(
        user_id=user_id,
        id=discovery.id,
        at=datetime.now(UTC),
        message=shorten(request.query.user_text),
        tools=_list_choices(discovery),
        strategy=discovery.strategy or discovery.options.strategy,
        degraded_reason=discovery.degraded_reason,
        no_match=discovery.no_match,
    )


def _make_decision(caller: Caller, request: DiscoveryRequest, discovery: Discovery, seconds: float) -> Decision:
    return Decision(
        user_id=caller.require_user().id,
        id=discovery.id,
        at=datetime.now(UTC),
        request_id=request_id.get(),
        actor=caller.actor,
        interface=request.interface,
        project_id=discovery.options.scope.project_id,
        strategy=discovery.strategy,
        degraded_reason=discovery.degraded_reason,
        confidence=discovery.confidence,
        no_match=discovery.no_match,
        no_match_reason=discovery.no_match_reason,
        searched=discovery.searched,
        omitted=None if discovery.omitted is None else asdict(discovery.omitted),
        tools=_list_choices(discovery),
        duration_ms=round(seconds * 1000, 2),
    )


def _list_choices(discovery: Discovery) -> list[Choice]:
    return [
        Choice(
            tool.definition.tool_id,
            tool.definition.server_name,
            tool.definition.name,
            tool.source,
            None if tool.similarity is None else round(tool.similarity, 4),
            None if tool.score is None else round(tool.score, 4),
        )
        for tool in discovery.tools
    ]
