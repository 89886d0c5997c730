"""Discoveries in a conversation whose tools Toolscout remembers.

The state is read before the search and written after it, and no connection is held in between. A request that finds the
state changed by another one searches again. Where the state cannot be read or written there is no answer, although the
search may have worked: the model's tools would change without anybody knowing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from weakref import WeakValueDictionary

from app.auth.permissions import Caller
from app.conversations.repository import (
    ConversationKey,
    delete_conversation,
    make_key,
    read_conversation,
    write_conversation,
)
from app.conversations.state import ConversationState, ConversationTool
from app.db.engine import Database
from app.discovery.changes import GivenTool
from app.discovery.models import Discovery
from app.discovery.request import ConversationTurn, DiscoveryRequest
from app.discovery.selection import Retirement
from app.errors import NotFound, QueryFailed, QueryInterrupted, Unavailable

logger = logging.getLogger("toolscout.discovery")

_MAX_ATTEMPTS = 10

Search = Callable[[DiscoveryRequest], Awaitable[Discovery]]


@dataclass(frozen=True)
class Conversations:
    """Remembers the tools of conversations. Built once."""

    database: Database
    max_tools: int
    """Tools are retired only where there are more."""
    idle_turns: int
    ttl: timedelta
    _locks: "WeakValueDictionary[ConversationKey, asyncio.Lock]" = field(default_factory=WeakValueDictionary)

    async def discover(
        self, caller: Caller, request: DiscoveryRequest, conversation: ConversationTurn, search: Search
    ) -> Discovery:
        """Search with the conversation's tools as `keep`, and remember those of the answer.

        Requests of one conversation in this process run one after another; those of other processes are noticed.
        """
        key = make_key(caller, conversation.id)
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            existed = False
            for _ in range(_MAX_ATTEMPTS):
                with _unavailable_on_failure():
                    stored = await read_conversation(self.database.reader(key.user_id), key, self.ttl)
                is_deleted = existed and stored.revision is None
                existed = stored.revision is not None
                turn = conversation.turn or stored.state.turn + 1
                before = stored.state.rewind(turn).add_calls(conversation.get_turns_of_calls(turn))
                discovery = await search(self._add_state(request, before, turn))
                after = before.apply(turn, _list_tools(discovery))
                # One that was deleted meanwhile, maybe with its user, is not stored again.
                if request.dry_run or is_deleted or await self._write(key, after, stored.revision):
                    return discovery
        raise Unavailable("other requests of this conversation are being answered; try again shortly")

    def _add_state(self, request: DiscoveryRequest, state: ConversationState, turn: int) -> DiscoveryRequest:
        keep = [GivenTool(tool.tool_key, tool.alias, tool.definition_hash) for tool in state.tools]
        retirement = Retirement(self.max_tools, state.find_idle(turn, self.idle_turns))
        return replace(request, keep=keep, retirement=retirement)

    async def _write(self, key: ConversationKey, state: ConversationState, revision: str | None) -> bool:
        with _unavailable_on_failure():
            async with self.database.transaction(key.user_id) as session:
                is_written = await write_conversation(session, key, state, revision, self.ttl)
        return is_written

    async def delete(self, caller: Caller, conversation_id: str) -> None:
        """Forget a conversation. Raise `NotFound` if there is none."""
        key = make_key(caller, conversation_id)
        async with self.database.transaction(key.user_id) as session:
            if not await delete_conversation(session, key):
                raise NotFound("conversation not found")


def _list_tools(discovery: Discovery) -> list[ConversationTool]:
    return [ConversationTool(tool.tool_key, tool.alias, tool.definition_hash) for tool in discovery.rendered or ()]


@contextmanager
def _unavailable_on_failure() -> Iterator[None]:
    try:
        yield
    except QueryInterrupted:
        raise
    except QueryFailed as error:
        logger.exception("failed to read or write the state of a conversation")
        raise Unavailable("the conversation's tools could not be read or stored; try again shortly") from error
