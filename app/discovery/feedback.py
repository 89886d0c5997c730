"""The deed: what became of a tool that a discovery has found."""

from app.catalog.definitions import read_definitions
from app.catalog.visibility import Scope
from app.discovery.discover import Discoverer
from app.discovery.ids import is_discovery_id_of
from app.errors import NotFound
from app.usage.repository import FeedbackOutcome, record_feedback


async def give_feedback(
    discoverer: Discoverer, scope: Scope, discovery_id: str, tool_key: str, outcome: FeedbackOutcome
) -> None:
    """Raises `NotFound` for a discovery that is not this user's, and for a tool that may not be seen. Of core tools
    there is nothing to learn: every answer has them."""
    if not is_discovery_id_of(discoverer.sealer, discovery_id, scope.user_id):
        raise NotFound("there is no such discovery, or it is too long ago")
    async with discoverer.database.transaction(scope.user_id) as session:
        offers = await read_definitions(session, scope, [tool_key], core=True)
        if tool_key in offers.tools:
            await record_feedback(session, scope.user_id, discovery_id, tool_key, outcome)
        elif all(offer.tool_id != tool_key for offer in offers.core):
            raise NotFound("there is no such tool, or it may not be used")
    discoverer.usage_counters.mark_priors_stale(scope.user_id)
