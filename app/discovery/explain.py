"""The use case `explain`: say why a tool is, or is not, in the answer to a message.

The checks follow the order in which a discovery drops a tool: does it exist, is it visible, does it pass the request's
filters, does it rank high enough, is there room for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.auth.permissions import Caller
from app.catalog.categories import is_in_categories
from app.catalog.tool_keys import KeyedTool, ToolKeyIndex
from app.catalog.visibility import Scope, load_evaluator, read_facts
from app.catalog.visibility_policy import (
    NOT_A_MEMBER,
    HiddenBy,
    OutsideBy,
    ProjectVisibility,
    ToolFacts,
    VisibilityDecision,
)
from app.cloud.wire import MAX_TOOLS, MAX_TOOLS_BYTES
from app.discovery.cloud_search import CloudAnswer
from app.discovery.cut import CalibrationSource, UserCut, resolve_cut
from app.discovery.discover import Discoverer, discover
from app.discovery.models import Discovery
from app.discovery.request import DiscoveryRequest
from app.discovery.selection import OmissionReason, SelectedTool
from app.search.confidence import MAX_LOW, Judgement
from app.search.postgres import Evidence
from app.search.query import Query
from app.search.ranking import Ranking
from app.search.scoring import ScoringParams
from app.search.searcher import QueryEmbedding


@dataclass(frozen=True)
class AnswerConfidence:
    """What the chance that any tool fits the message comes from."""

    chance: float | None
    shift: float
    """By how many logits the user's outcomes raise the chance."""
    outcomes: int
    """How many answers with outcomes the shift is based on."""
    source: CalibrationSource
    """Whose calibration it is: the model's, or the user's own."""


@dataclass(frozen=True)
class Reason:
    """`code` is stable; `message` is for people."""

    code: str
    message: str
    facts: ToolFacts | None = None
    rule: int | None = None
    """The number of the deciding rule, from 1."""
    rank: int | None = None
    evidence: Evidence | None = None
    confidence: AnswerConfidence | None = None


_CORE = Reason("included", "it is a core tool, and every answer includes the core tools")
_NOT_INDEXED = Reason("not_indexed", "no visible tool has this key or name")

_HIDDEN: Mapping[HiddenBy, tuple[str, str]] = {
    "server": ("server_disabled", "its server is disabled"),
    "permission": ("not_permitted", "its server's `tool_permissions` do not permit it"),
    "user": ("switched_off", "a user has disabled it (`PATCH /tools/{id}`)"),
    "rule": ("disabled_by_rule", "rule {rule} disables it"),
    "changed": ("held", "its definition has changed and waits for approval (`POST /tools/{id}/approve`)"),
    "new": ("held", "it is new on its server and waits for approval (`POST /tools/{id}/approve`)"),
    "status": ("server_failing", "the last connection to its server failed, and failing servers are not searched"),
}
_OUTSIDE: Mapping[OutsideBy, tuple[str, str]] = {
    "member": ("outside_project", "its server is not a member of the project"),
    "rule": ("disabled_by_project_rule", "rule {rule} of the project disables it"),
    "read_only": ("not_read_only", "the project is read-only, and the tool has no `readOnlyHint`"),
}
_OMITTED: Mapping[OmissionReason, str] = {
    "max_tools": "the tools in `keep` and those before it leave no room for it within TOOLSCOUT_MAX_TOOLS",
    "max_tokens": "the core tools and the tools before it leave too little of `max_tokens` for it",
}
_BEYOND_LIMIT = "all visible tools are returned up to the limit, pinned and most used tools first: it is beyond it"
_MIN_TOLD_BOOST = 0.01
_NO_RULE = "no rule enables it, and some rule enables other tools"


async def explain(discoverer: Discoverer, caller: Caller, request: DiscoveryRequest, tool: str) -> list[Reason]:
    """Return a reason for each tool whose key or name is `tool`.

    For a key that is bound to a project, tools outside the project do not exist.
    """
    discovery = await discover(discoverer, caller, replace(request, explain=True, dry_run=True))
    scope = discovery.options.scope
    async with discoverer.database.snapshot(scope.user_id) as session:
        facts_by_id = {facts.tool_id: facts for facts in await read_facts(session, scope.user_id)}
        evaluator = await load_evaluator(session, scope.user_id)
    candidates = [facts_by_id[each.tool_id] for each in ToolKeyIndex(map(_name, facts_by_id.values())).find_all(tool)]
    evaluated = {facts.tool_id: (facts, evaluator.evaluate(facts)) for facts in candidates}
    if caller.project_id is not None:
        evaluated = {key: each for key, each in evaluated.items() if _check_visible(scope, *each) is None}
    named = ToolKeyIndex(_name(facts) for facts, _ in evaluated.values()).find(tool)
    decisions = [evaluated[each.tool_id] for each in named]
    if not decisions:
        return [_CORE if _is_core_tool(discovery, tool) else _NOT_INDEXED]
    cut = resolve_cut(discoverer.searcher.models.get(scope.model).model, caller.require_user())
    confidence = AnswerConfidence(discovery.chance, cut.shift, cut.evidence.outcomes, cut.source)
    reasons = [await _explain_tool(discoverer, discovery, cut, *each) for each in decisions]
    return [
        replace(reason, message=reason.message + _describe_examples(reason.evidence), confidence=confidence)
        for reason in reasons
    ]


def _name(facts: ToolFacts) -> KeyedTool:
    return KeyedTool(facts.tool_id, facts.server_id, facts.server_name, facts.name)


def _is_core_tool(discovery: Discovery, tool: str) -> bool:
    core = (selected.definition for selected in discovery.tools if selected.source == "core")
    return any(tool in (definition.tool_id, definition.name) for definition in core)


async def _explain_tool(
    discoverer: Discoverer, discovery: Discovery, cut: UserCut, facts: ToolFacts, decision: VisibilityDecision
) -> Reason:
    scope, embedding = discovery.options.scope, discovery.embedding
    excluded = _check_visible(scope, facts, decision) or _check_filters(scope, facts, decision)
    if excluded is not None:
        return excluded
    reader = discoverer.database.reader(scope.user_id)
    if not await is_in_categories(reader, scope, facts.tool_id):
        return Reason("outside_filter", "it is in none of the request's `categories`", facts)
    for position, tool in enumerate(discovery.tools, start=1):
        if tool.definition.tool_id == facts.tool_id:
            message = f"it is number {position} of the answer{_describe_relevance(discovery, tool)}"
            return Reason("included", message, facts, rank=position, evidence=tool.evidence)
    if embedding is None:
        message = "the project's `optimization` is null: it returns core tools alone"
        return Reason("discovery_off", message, facts)
    if discovery.degraded_reason in ("disabled", "search_failed"):
        omitted = discovery.omitted_tools.get(facts.tool_id)
        return Reason("no_room", _BEYOND_LIMIT if omitted is None else _OMITTED[omitted], facts)
    if discovery.cloud is not None:
        return _explain_cloud(discovery, discovery.cloud, facts)
    reason = await _explain_rank(discoverer, discovery, embedding, cut, facts)
    if not discovery.options.cloud:
        return reason
    fallback = f"the cloud could not be used ({discovery.degraded_reason}), so the search is by words alone"
    return replace(reason, message=f"{reason.message}; {fallback}")


def _describe_examples(evidence: Evidence | None) -> str:
    """Say how far examples move the tool; empty if they hardly do."""
    if evidence is None or abs(evidence.example_boost) < _MIN_TOLD_BOOST:
        return ""
    if evidence.example_boost > 0:
        return f"; examples of messages like this one raise its score by {evidence.example_boost:.2f}"
    return (
        f"; reports that it was irrelevant to messages like this one lower its score by {-evidence.example_boost:.2f}"
    )


def _describe_relevance(discovery: Discovery, tool: SelectedTool) -> str:
    """Return what the cloud says about a tool that it found; empty for any other tool."""
    if discovery.cloud is None or tool.score is None:
        return ""
    why = "" if tool.explanation is None else f" ({tool.explanation})"
    return f": the cloud gave it a relevance of {tool.score:.2f}{why}"


def _explain_cloud(discovery: Discovery, answer: CloudAnswer, facts: ToolFacts) -> Reason:
    """Explain why a tool is not in an answer of the cloud."""
    omitted = discovery.omitted_tools.get(facts.tool_id)
    if omitted is not None:
        return Reason("no_room", _OMITTED[omitted], facts)
    if facts.tool_id not in answer.sent:
        message = (
            f"the cloud searches at most {MAX_TOOLS} tools and {MAX_TOOLS_BYTES // 2**20} MiB of definitions, and it "
            "has too few of the message's words to be among them"
        )
        return Reason("not_sent", message, facts)
    if not answer.matches:
        return Reason("no_match", "the cloud found no tool that fits", facts)
    count = len(answer.matches)
    others = "one other tool" if count == 1 else f"{count} other tools"
    message = f"the cloud returned {others}, and the limit is {discovery.options.limit}"
    return Reason("not_chosen", message, facts)


def _check_visible(scope: Scope, facts: ToolFacts, decision: VisibilityDecision) -> Reason | None:
    """Return why the tool is not visible to the user or in the project, or None if it is."""
    if decision.hidden_by is not None:
        code, message = _HIDDEN[decision.hidden_by]
        return Reason(code, _format_rule(message, decision.rule), facts, decision.rule)
    if scope.project_id is None:
        return None
    in_project = decision.by_project.get(scope.project_id, NOT_A_MEMBER)
    if in_project.outside_by is None:
        return None
    code, message = _OUTSIDE[in_project.outside_by]
    return Reason(code, _format_rule(message, in_project.rule), facts, in_project.rule)


def _format_rule(message: str, rule: int | None) -> str:
    return _NO_RULE if "{rule}" in message and rule is None else message.replace("{rule}", str(rule))


def _check_filters(scope: Scope, facts: ToolFacts, decision: VisibilityDecision) -> Reason | None:
    """Return which filter of the request excludes the tool, or None if it passes."""
    if scope.server_ids is not None and facts.server_id not in scope.server_ids:
        return Reason("outside_filter", "its server is not in the request's `server_ids`", facts)
    in_project = decision.by_project.get(scope.project_id or "", ProjectVisibility(None))
    if scope.tags is not None and not {*decision.tags, *in_project.tags} & set(scope.tags):
        return Reason("outside_filter", "it has none of the request's `tags`", facts)
    return None


async def _explain_rank(
    discoverer: Discoverer, discovery: Discovery, embedding: QueryEmbedding, cut: UserCut, facts: ToolFacts
) -> Reason:
    searcher, query, options, tool_id = discoverer.searcher, discovery.query, discovery.options, facts.tool_id
    async with discoverer.database.snapshot(options.scope.user_id) as session:
        evidence = (await searcher.read_evidence(session, query, options, embedding, [tool_id])).get(tool_id)
        ranking = (await searcher.find(session, query, options, embedding, limit=None)).ranking
        unmoved = ranking
        if cut.is_moved:
            without = replace(options, own_calibration=None, shift=0.0)
            unmoved = (await searcher.find(session, query, without, embedding, limit=None)).ranking
    moved = _explain_move(cut, unmoved, ranking)
    rank = next((rank for rank, hit in enumerate(ranking.hits, start=1) if hit.tool_id == tool_id), None)
    omitted = discovery.omitted_tools.get(tool_id)
    if omitted is not None:
        message = _OMITTED[omitted] if rank is None else f"it ranks {rank}, but {_OMITTED[omitted]}"
        return Reason("no_room", message, facts, rank=rank, evidence=evidence)
    if ranking.judgement.confidence == "none" and rank is not None:
        return Reason("no_match", _explain_no_match(query, ranking.judgement) + moved, facts, evidence=evidence)
    if rank is None:
        message = _explain_threshold(searcher.make_params(query, options, embedding), evidence)
        return Reason("below_threshold", message, facts, evidence=evidence)
    is_cut = rank > ranking.size
    if rank > options.limit and not (is_cut and ranking.judgement.confidence == "low"):
        message = f"it ranks {rank}, and the limit is {options.limit}"
        return Reason("outranked", message, facts, rank=rank, evidence=evidence)
    if is_cut:
        message = _explain_cut(rank, ranking.judgement) + moved
        return Reason("unlikely", message, facts, rank=rank, evidence=evidence)
    message = f"it ranks {rank} since the catalogue changed a moment ago: it is in the next answer"
    return Reason("included", message, facts, rank=rank, evidence=evidence)


def _explain_no_match(query: Query, judgement: Judgement) -> str:
    if query.is_closing:
        return "the message only says thanks or goodbye"
    if not judgement.chance:
        return "no tool has more in common with the message than unrelated texts have"
    return (
        f"the chance that any tool fits is {judgement.chance:.1%}: the message seems to need no tool, and no tool "
        "matches well enough to contradict that"
    )


def _explain_move(cut: UserCut, unmoved: Ranking, moved: Ranking) -> str:
    """Say how the user's own calibration and outcomes change the chance; empty if they do not."""
    before, after = unmoved.judgement.chance, moved.judgement.chance
    if not cut.is_moved or not before or not after:
        return ""
    causes = ["own calibration"] if cut.own_calibration is not None else []
    causes += [f"{cut.evidence.outcomes} outcomes"] if cut.shift else []
    verb = "raise" if after > before else "lower"
    if len(causes) == 1 and cut.own_calibration is not None:
        verb += "s"
    return f"; this user's {' and '.join(causes)} {verb} the chance that any tool fits from {before:.1%} to {after:.1%}"


def _explain_cut(rank: int, judgement: Judgement) -> str:
    if judgement.confidence == "low" and rank <= MAX_LOW:
        judged = "its chance of being the right tool is too small"
    elif judgement.confidence == "low":
        judged = f"with low confidence the answer has at most {MAX_LOW} tools"
    else:
        judged = "its chance of being the right tool is too small beside the tools before it"
    return f"it ranks {rank}, but {judged}: `fill` returns more"


def _explain_threshold(params: ScoringParams, evidence: Evidence | None) -> str:
    if evidence is not None and params.strategy == "bm25" and not evidence.bm25:
        return "it contains none of the message's words"
    cosine = "unknown" if evidence is None or evidence.cosine is None else f"{evidence.cosine:.3f}"
    message = f"its similarity is {cosine}, below the threshold of {params.min_similarity:g}"
    if params.strategy == "hybrid":
        message += ", and it contains too few of the message's words"
    return message
