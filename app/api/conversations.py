"""REST: conversations whose tools are remembered."""

from typing import Annotated

from fastapi import APIRouter, Path

from app.api.strict_route import StrictRoute
from app.dependencies import ContainerDep, DiscoverCaller
from app.schemas.kept_tools import ConversationId

router = APIRouter(tags=["discovery"], route_class=StrictRoute)


@router.delete("/conversations/{conversation_id}", status_code=204)
async def delete_conversation(
    conversation_id: Annotated[ConversationId, Path(description="as in `keep` of `POST /discover`")],
    caller: DiscoverCaller,
    container: ContainerDep,
) -> None:
    """Forget the tools of a conversation that has ended.

    Without it they are forgotten a day after the last turn (`TOOLSCOUT_CONVERSATION_TTL_HOURS`).
    """
    await container.discoverer.conversations.delete(caller, conversation_id)
