"""The nodes of a distributed database: which of them do not answer."""

import asyncio
import logging
import time
from collections.abc import Sequence

from sqlalchemy import Connection, text

from app.db.engine import Database
from app.errors import QueryFailed, Unavailable

logger = logging.getLogger("toolscout.db")

_TIMEOUT_S = 5.0
_VALID_S = 5.0

# asked as the app role, so that it also shows whether that role may log in there
_ASK_NODES = """
    SELECT nodename || ':' || nodeport, success, result FROM run_command_on_workers('SELECT 1') ORDER BY 1
"""


class Nodes:
    """Remembers for a few seconds which nodes are away, since `/readyz` needs no key and may be asked often."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.lost: Sequence[str] = ()
        """Those that did not answer when they were last asked."""
        self._asked_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def find_lost(self) -> Sequence[str]:
        """Return the nodes, as `host:port`, that do not answer. A database on one node has none."""
        if not self._database.is_distributed:
            return ()
        if time.monotonic() - self._asked_at > _VALID_S:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask())
            await asyncio.shield(self._asking)
        return self.lost

    def forget(self) -> None:
        """Ask again the next time: a statement has just failed, because a node was away."""
        self._asked_at = float("-inf")

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                [rows] = await self._database.system_fetch([(_ASK_NODES, None)])
        except (TimeoutError, Unavailable, QueryFailed):
            # what is known stays; whether the database answers at all is another question
            self._asked_at = time.monotonic()
            return
        lost = [node for node, answers, _ in rows if not answers]
        for node in set(lost) - set(self.lost):
            logger.warning("a node of the database does not answer", extra={"node": node})
        for node in set(self.lost) - set(lost):
            logger.info("a node of the database answers again", extra={"node": node})
        self.lost, self._asked_at = lost, time.monotonic()


def ask_nodes(connection: Connection) -> list[tuple[str, bool, str]]:
    """Return each node, whether it answers, and its answer or error."""
    return [(node, answers, result) for node, answers, result in connection.execute(text(_ASK_NODES))]
