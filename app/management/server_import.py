"""Register the servers of an MCP client's configuration file."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.catalog.client_config.entries import SkipKind, SkippedEntry
from app.catalog.client_config.placeholders import hide_values
from app.catalog.servers import NewServer, Server
from app.crypto import Sealer
from app.db.engine import Database
from app.errors import Conflict, InvalidInput, LimitReached
from app.indexing.queue import Run
from app.indexing.worker import Worker
from app.management.quotas import Quotas
from app.management.servers import store_server
from app.mcp_client.pool import McpPool
from app.mcp_client.resolver import MAX_LOOKUPS_PER_USER

_MAX_CHECKS = MAX_LOOKUPS_PER_USER
"""Address look-ups at a time: what the resolver does at once for one user."""
_CHECK_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class ImportEntry:
    """A server to register."""

    new_server: NewServer = field(repr=False)
    notes: Sequence[str] = ()
    """What of the entry is not imported."""
    used: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The values of its placeholders, which no message may repeat."""

    def skip(self, kind: SkipKind, reason: str) -> SkippedEntry:
        return SkippedEntry(self.new_server.name, kind, hide_values(reason, self.used))


@dataclass(frozen=True)
class ImportedServer:
    server: Server
    run: Run | None
    notes: Sequence[str]


@dataclass(frozen=True)
class ImportResult:
    imported: Sequence[ImportedServer]
    skipped: Sequence[SkippedEntry]


async def import_servers(
    database: Database,
    mcp_pool: McpPool,
    sealer: Sealer,
    worker: Worker,
    user_id: str,
    entries: Sequence[ImportEntry | SkippedEntry],
    quotas: Quotas,
    *,
    actor: str,
) -> ImportResult:
    """Register what can be registered, in order. An entry that cannot is reported, and does not stop the others."""
    checked = await _check_addresses(mcp_pool, user_id, entries)
    imported: list[ImportedServer] = []
    skipped: list[SkippedEntry] = []
    for entry in checked:
        if isinstance(entry, SkippedEntry):
            skipped.append(entry)
            continue
        try:
            server, run = await store_server(database, sealer, worker, user_id, entry.new_server, quotas, actor=actor)
        except Conflict as error:
            reason = f"{error.message}: change or delete that one, or give this one another name"
            skipped.append(entry.skip("exists", reason))
        except LimitReached as error:
            skipped.append(entry.skip("limit_reached", error.message))
        else:
            imported.append(ImportedServer(server, run, entry.notes))
    return ImportResult(imported, skipped)


async def _check_addresses(
    mcp_pool: McpPool, user_id: str, entries: Sequence[ImportEntry | SkippedEntry]
) -> list[ImportEntry | SkippedEntry]:
    """Replace the entries whose address is not allowed, or cannot be looked up in time."""
    slots, deadline = asyncio.Semaphore(_MAX_CHECKS), asyncio.get_running_loop().time() + _CHECK_TIMEOUT_S

    async def check(entry: ImportEntry | SkippedEntry) -> ImportEntry | SkippedEntry:
        if isinstance(entry, SkippedEntry):
            return entry
        server = entry.new_server
        try:
            async with asyncio.timeout_at(deadline), slots:
                await mcp_pool.check(user_id, server.transport, server.name, server.url)
        except InvalidInput as error:
            return entry.skip("not_allowed", error.message)
        except TimeoutError:
            return entry.skip("not_checked", "its host name could not be looked up in time: import it again")
        return entry

    return await asyncio.gather(*map(check, entries))
