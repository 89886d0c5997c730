"""The use case `give_feedback`: record what became of a tool that a discovery returned."""

from app.catalog.definitions import read_definitions
from app.catalog.visibility import Scope
from app.discovery.discover import Discoverer
from app.discovery.ids import verify_discovery_id
from app.errors import NotFound
from app.usage.repository import FeedbackOutcome, record_feedback


async def give_feedback(
    discoverer: Discoverer, scope: Scope, discovery_id: str, tool_key: str, outcome: FeedbackOutcome
) -> None:
    """Record an outcome once for each discovery and tool.

    Raises `NotFound` if the discovery is not this user's or the tool is not visible. Feedback on a core tool is
    accepted and not recorded: every answer includes it, so there is nothing to learn.
    """
    if not verify_discovery_id(discoverer.sealer, discovery_id, scope.user_id):
        raise NotFound("discovery not found, or older than 30 days")
    async with discoverer.database.transaction(scope.user_id) as session:
        definitions = await read_definitions(session, scope, [tool_key], core=True)
        if tool_key in definitions.tools:
            await record_feedback(session, scope.user_id, discovery_id, tool_key, outcome)
        elif all(definition.tool_id != tool_key for definition in definitions.core):
            raise NotFound("tool not found")
    discoverer.usage_counters.mark_priors_stale(scope.user_id)
