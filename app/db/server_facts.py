"""Find out which Postgres server a connection leads to, and whether it is a primary or a replica of it."""

from dataclasses import dataclass
from datetime import datetime

from app.db.engine import Database

# All of it is open to every role. The last column loads pgvector's library, which each server has of its own.
_READ_FACTS = """
    SELECT (SELECT system_identifier FROM pg_control_system()),
           (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),
           pg_postmaster_start_time(),
           pg_is_in_recovery(),
           CASE WHEN pg_is_in_recovery() THEN
               greatest((SELECT timeline_id FROM pg_control_checkpoint()),
                        (SELECT min_recovery_end_timeline FROM pg_control_recovery()))
           ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END,
           pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END,
                           '0/0')::bigint,
           extract(epoch FROM now() - pg_last_xact_replay_timestamp())::float8,
           current_setting('server_version'),
           '[1]'::vector <-> '[1]'::vector
"""


@dataclass(frozen=True)
class ServerFacts:
    cluster: int
    """The same on a primary and all of its replicas."""
    database: int
    started_at: datetime
    is_replica: bool
    timeline: int
    """Each promotion begins a new one. The control file of a replica has it with a delay."""
    position: int
    """In the write-ahead log, in bytes: how far it is written, or replayed."""
    replay_age_s: float | None
    """How long ago the transaction was committed that was replayed last."""
    version: str

    def lag_behind(self, primary: "ServerFacts") -> int:
        """Return the bytes that the primary had written, and this replica has not replayed."""
        return max(0, primary.position - self.position)


async def read_facts(database: Database) -> ServerFacts:
    [[(*columns, _)]] = await database.system_fetch([(_READ_FACTS, None)], urgent=True)
    return ServerFacts(*columns)


def find_problem(primary: ServerFacts, replica: ServerFacts) -> str | None:
    """Return why a server cannot answer in place of the primary, or None if it can."""
    if (replica.cluster, replica.database) != (primary.cluster, primary.database):
        return "it is no replica of the database of DATABASE_URL, but another database"
    if not replica.is_replica:
        if replica.started_at == primary.started_at:
            return "it is the server of DATABASE_URL itself"
        return "it is no replica any more: it was promoted, and takes writes of its own"
    if replica.timeline != primary.timeline:
        return (
            f"it is on timeline {replica.timeline}, and the primary on {primary.timeline}: it has not followed the "
            "primary's promotion yet, or cannot"
        )
    return None
