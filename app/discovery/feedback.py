"""The use case `give_feedback`: record what became of a tool that a discovery returned."""

from app.auth.users import get_user, update_user
from app.catalog.definitions import read_definitions
from app.catalog.tool_keys import resolve_visible_key
from app.catalog.visibility import Scope
from app.conversations.calls import note_call
from app.conversations.repository import ConversationKey
from app.db.engine import Session
from app.discovery.cut import resolve_cut
from app.discovery.discover import Discoverer
from app.discovery.ids import read_discovery_id
from app.embeddings.repository import EmbeddingModel
from app.errors import NotFound
from app.usage.adaptation import weigh_answer
from app.usage.repository import FeedbackOutcome, list_outcomes, record_feedback


async def give_feedback(
    discoverer: Discoverer,
    scope: Scope,
    discovery_id: str,
    tool_key: str,
    outcome: FeedbackOutcome,
    conversation: ConversationKey | None = None,
) -> None:
    """Record an outcome once for each discovery and tool, let it move the user's cut, and learn from it.

    Raises `NotFound` if the discovery is not this user's or the tool is not visible. Feedback on a core tool is
    accepted and not recorded: every answer includes it, so there is nothing to learn. In a conversation, a tool that
    was called stays for longer.
    """
    discovery = read_discovery_id(discoverer.sealer, discovery_id, scope.user_id)
    if discovery is None:
        raise NotFound("discovery not found, or older than 30 days")
    model, recorder = discoverer.searcher.models.get(scope.model).model, discoverer.recorder
    await recorder.learner.write_vectors(scope.user_id)
    async with discoverer.database.transaction(scope.user_id) as session:
        tool_id = await resolve_visible_key(session, scope, tool_key)
        if tool_id is None:
            raise NotFound("tool not found")
        definitions = await read_definitions(session, scope, [tool_id], core=True)
        if tool_id in definitions.tools:
            new = await record_feedback(session, scope.user_id, discovery_id, tool_id, outcome)
            await recorder.learner.learn_from_feedback(session, scope.user_id, discovery_id, tool_id, new)
            if new and discovery.chance is not None:
                added = {(tool_id, each) for each in new}
                await _adapt_cut(session, model, scope.user_id, discovery_id, discovery.chance, added)
        elif all(definition.tool_id != tool_id for definition in definitions.core):
            raise NotFound("tool not found")
    recorder.usage_counters.mark_priors_stale(scope.user_id)
    if conversation is not None and outcome != "irrelevant":
        await note_call(discoverer.database, conversation, tool_id)


async def _adapt_cut(
    session: Session,
    model: EmbeddingModel,
    user_id: str,
    discovery_id: str,
    chance: float,
    added: set[tuple[str, FeedbackOutcome]],
) -> None:
    """Replace the evidence of the answer by what its outcomes say now. The caller holds the lock of the user.

    The chance is about the whole answer, so that it counts once, however many of its tools have outcomes.
    """
    outcomes = await list_outcomes(session, user_id, discovery_id)
    cut = resolve_cut(model, await get_user(session, user_id))
    min_high = cut.calibration.min_high
    before = weigh_answer(chance, min_high, {outcome for _, outcome in outcomes - added})
    after = weigh_answer(chance, min_high, {outcome for _, outcome in outcomes})
    if after != before:
        evidence = cut.evidence.update(before, after)
        await update_user(session, user_id, {"adaptation": evidence.to_json(cut.basis)})
