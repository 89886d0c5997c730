"""The deed: why a tool is, or is not, in the answer to a message.

Asked in the order in which a discovery would lose it: is it there, may it be seen, does the request let it through,
does the search rank it high enough, is there room for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.auth.users import User
from app.catalog.policy import NOT_A_MEMBER, HiddenBy, OutsideBy, ProjectVisibility, ToolFacts, VisibilityDecision
from app.catalog.visibility import load_evaluator, read_facts
from app.discovery.discover import Ask, Discoverer, Discovery, discover, embed_query, make_scoring_params
from app.search.postgres import Evidence, SearchResult
from app.search.scoring import ScoringParams


@dataclass(frozen=True)
class Reason:
    """`code` is stable; `message` is for people."""

    code: str
    message: str
    facts: ToolFacts | None = None
    rule: int | None = None
    """Counted from 1."""
    rank: int | None = None
    evidence: Evidence | None = None


_CORE = Reason("included", "it is a core tool, which every answer includes")
_NOT_INDEXED = Reason("not_indexed", "no tool of this key or name is indexed, or it may not be seen")

_HIDDEN: Mapping[HiddenBy, tuple[str, str]] = {
    "server": ("server_disabled", "its server is switched off"),
    "permission": ("not_permitted", "its server's `tool_permissions` do not permit it"),
    "user": ("switched_off", "somebody has switched it off (`PATCH /tools/{id}`)"),
    "rule": ("disabled_by_rule", "it is off by rule {rule}"),
    "changed": ("held", "its definition has changed and waits for approval (`POST /tools/{id}/approve`)"),
    "status": ("server_failing", "its server's last contact failed, and such servers are not searched here"),
}
_OUTSIDE: Mapping[OutsideBy, tuple[str, str]] = {
    "member": ("outside_project", "its server is not a member of the project"),
    "rule": ("disabled_by_project_rule", "it is off by rule {rule} of the project"),
    "read_only": ("not_read_only", "the project is read-only, and the tool does not say that it only reads"),
}
_NO_RULE = "no rule allows it, and some rule says what is allowed"


async def explain(discoverer: Discoverer, user: User, ask: Ask, wanted: str, *, confined: bool) -> list[Reason]:
    """One for each tool that is meant by a key, a name or `SERVER.TOOL`. To a caller who is `confined` to a project,
    what lies outside it is not there."""
    async with discoverer.database.snapshot(user.id) as session:
        meant = [facts for facts in await read_facts(session, user.id) if _is_meant(facts, wanted)]
        judge = await load_evaluator(session, user.id)
    judged = [(facts, judge.evaluate(facts)) for facts in meant]
    if confined:
        judged = [(facts, verdict) for facts, verdict in judged if _unseen(ask, facts, verdict) is None]
    discovery = await discover(discoverer, user, replace(ask, explain=True, trial=True))
    if not judged:
        return [_CORE if _is_core(discovery, wanted) else _NOT_INDEXED]
    return [await _reason(discoverer, user, ask, discovery, facts, verdict) for facts, verdict in judged]


def _is_core(discovery: Discovery, wanted: str) -> bool:
    core = (each.offer for each in discovery.tools if each.source == "core")
    return any(wanted in (offer.tool_id, offer.name) for offer in core)


def _is_meant(facts: ToolFacts, wanted: str) -> bool:
    return wanted in (facts.tool_id, facts.name, f"{facts.server_name}.{facts.name}")


async def _reason(
    discoverer: Discoverer, user: User, ask: Ask, discovery: Discovery, facts: ToolFacts, verdict: VisibilityDecision
) -> Reason:
    unseen = _unseen(ask, facts, verdict) or _filtered(ask, facts, verdict)
    if unseen is not None:
        return unseen
    for place, tool in enumerate(discovery.tools, start=1):
        if tool.offer.tool_id == facts.tool_id:
            message = f"it is number {place} of the answer"
            return Reason("included", message, facts, rank=place, evidence=tool.evidence)
    if ask.strategy is None:
        return Reason("discovery_off", "the project's `optimization` is null: it answers with core tools alone", facts)
    if discovery.degraded_reason in ("disabled", "search_failed"):
        message = "all tools are offered up to the limit, pinned and most used ones first, and it came too late"
        return Reason("no_room", message, facts)
    return await _ranked(discoverer, user, ask, facts)


def _unseen(ask: Ask, facts: ToolFacts, verdict: VisibilityDecision) -> Reason | None:
    if verdict.hidden_by is not None:
        code, message = _HIDDEN[verdict.hidden_by]
        return Reason(code, _by(message, verdict.rule), facts, verdict.rule)
    project_id = ask.scope.project_id
    placement = ProjectVisibility(None) if project_id is None else verdict.by_project.get(project_id, NOT_A_MEMBER)
    if placement.outside_by is None:
        return None
    code, message = _OUTSIDE[placement.outside_by]
    return Reason(code, _by(message, placement.rule), facts, placement.rule)


def _by(message: str, rule: int | None) -> str:
    return _NO_RULE if "{rule}" in message and rule is None else message.format(rule=rule, id="{id}")


def _filtered(ask: Ask, facts: ToolFacts, verdict: VisibilityDecision) -> Reason | None:
    servers, tags = ask.scope.server_ids, ask.scope.tags
    if servers is not None and facts.server_id not in servers:
        return Reason("outside_filter", "its server is not among the request's `server_ids`", facts)
    placement = verdict.by_project.get(ask.scope.project_id or "", ProjectVisibility(None))
    if tags is not None and not {*verdict.tags, *placement.tags} & set(tags):
        return Reason("outside_filter", "it has none of the request's `tags`", facts)
    return None


async def _ranked(discoverer: Discoverer, user: User, ask: Ask, facts: ToolFacts) -> Reason:
    rung = await embed_query(discoverer, user, ask)
    question = make_scoring_params(discoverer, ask, rung)
    search = discoverer.search
    async with discoverer.database.snapshot(user.id) as session:
        evidence = await search.evidence(session, ask.scope, question, rung.vectors, [facts.tool_id])
        found = await search.find(session, ask.scope, question, rung.vectors, limit=None)
    if found.abstained:
        message = "the message looks like one that needs no tool, and no tool fits well enough to think otherwise"
        return Reason("no_match", message, facts, evidence=evidence.get(facts.tool_id))
    return _judged(ask, question, _rank(found, facts), facts, evidence.get(facts.tool_id))


def _rank(found: SearchResult, facts: ToolFacts) -> int | None:
    return next((n for n, hit in enumerate(found.hits, start=1) if hit.tool_id == facts.tool_id), None)


def _judged(ask: Ask, question: ScoringParams, rank: int | None, facts: ToolFacts, evidence: Evidence | None) -> Reason:
    if rank is not None and rank <= ask.limit:
        message = f"it ranks {rank}, but there was no room left: see `max_tokens` and TOOLSCOUT_MAX_TOOLS"
        return Reason("no_room", message, facts, rank=rank, evidence=evidence)
    if rank is not None:
        message = f"it ranks {rank}, and the limit is {ask.limit}"
        return Reason("outranked", message, facts, rank=rank, evidence=evidence)
    if evidence is not None and question.strategy == "bm25" and not evidence.bm25:
        return Reason("below_threshold", "none of the message's words is its own", facts, evidence=evidence)
    cosine = None if evidence is None else evidence.cosine
    message = f"its similarity is {_shown(cosine)}, below the threshold of {question.least_similarity:g}"
    if question.strategy == "hybrid":
        message += ", and too few of the message's words are its own"
    return Reason("below_threshold", message, facts, evidence=evidence)


def _shown(cosine: float | None) -> str:
    return "not known yet" if cosine is None else f"{cosine:.3f}"
