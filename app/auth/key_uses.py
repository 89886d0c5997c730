"""Note when keys were last used, to the minute, without a write in the request."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta

from app.auth.keys import ApiKey
from app.db.engine import Database
from app.errors import QueryFailed, QueryInterrupted, Unavailable

logger = logging.getLogger("toolscout.auth")

_PRECISION = timedelta(minutes=1)
_MAX_PENDING = 10_000
"""While the database is down. The next use of a key that is left out is recorded."""

_MAX_KEYS = 500
"""In one transaction."""

# Replicas write the same keys, one by one in the same order. One that waits for another finds its rows written.
_WRITE = """
    UPDATE api_keys SET last_used_at = now()
    WHERE key_hash = %(digest)s AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')
"""


class KeyUses:
    """Collects the keys that were used; `flush` writes them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._pending: set[bytes] = set()
        self._flushing = asyncio.Lock()

    @property
    def pending(self) -> int:
        return len(self._pending)

    def record(self, digest: bytes, key: ApiKey) -> None:
        """`digest` is the hash of the key."""
        is_outdated = key.last_used_at is None or key.last_used_at < datetime.now(UTC) - _PRECISION
        if is_outdated and len(self._pending) < _MAX_PENDING:
            self._pending.add(digest)

    async def flush(self) -> None:
        """Write the pending uses. If the database is down or interrupts the statement, they stay pending."""
        if not self._pending:
            return
        async with self._flushing:
            digests, self._pending = sorted(self._pending), set()
            try:
                for first in range(0, len(digests), _MAX_KEYS):
                    batch = digests[first : first + _MAX_KEYS]
                    async with self._database.system_transaction() as session:
                        await session.pipeline([(_WRITE, {"digest": digest}) for digest in batch])
            except (Unavailable, QueryInterrupted):
                self._pending.update(digests)
            except QueryFailed:
                logger.warning("failed to write when keys were last used", exc_info=True)
