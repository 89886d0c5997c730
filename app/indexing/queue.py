"""The queue of index runs: rows in Postgres with a lease and a fencing token. Accepted runs survive a crash.

A server has at most one queued and one running run: a push replaces the list of a run that is still queued. A worker
owns a run while the row holds its lease token. After the lease has expired, another worker may claim the run, which
changes the token; the first worker then writes nothing.
"""

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Delete, Row, case, delete, func, null, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError

from app.audit.record import SUCCEEDED, record_event
from app.catalog.servers import get_server, record_failure
from app.catalog.shared_servers import update_sharing
from app.catalog.visibility import lock_server
from app.db.engine import Session
from app.db.notifications import Channel, notify
from app.db.pagination import Page, PageRequest, fetch_page
from app.db.rows import to_dataclass
from app.db.tables import SHARED_OWNER, index_runs, mcp_servers, waiting_users
from app.errors import AUTHORIZATION_REQUIRED, NotFound, ToolscoutError

MAX_ATTEMPTS = 3
MAX_FINISHED_RUNS = 50
"""Kept for each server; older ones are deleted."""

SYSTEM = "system"
SCHEDULE = "schedule"
"""Values of `asked_by` for runs that no caller requested."""
ANNOUNCEMENT = "server:"
"""The beginning of `asked_by` for runs that a server caused by announcing a change; its id follows."""

RunState = Literal["queued", "running", "succeeded", "failed"]


@dataclass(frozen=True)
class Run:
    id: str
    user_id: str
    server_id: str
    state: RunState
    done: int
    total: int
    counts: Mapping[str, int]
    refused: Sequence[Mapping[str, Any]]
    warnings: Sequence[str]
    error: Mapping[str, str] | None
    created_at: datetime
    finished_at: datetime | None

    @property
    def all_counts(self) -> dict[str, int]:
        """The counts, with 0 for what the run has not counted yet."""
        return RunSummary().counts() | dict(self.counts)

    @property
    def is_finished(self) -> bool:
        return self.state in ("succeeded", "failed")


@dataclass(frozen=True)
class Claim:
    """A run that this worker owns until its lease expires."""

    id: str
    user_id: str
    server_id: str
    fetch_from_server: bool
    """Otherwise the payload is indexed, or the stored tools if there is none."""
    force: bool
    accept_empty: bool
    payload: bytes | None
    attempts: int
    lease_token: int
    asked_by: str
    lease_s: float
    host: str | None
    """The server that is to be listed; None if the run needs none."""

    @property
    def is_requested(self) -> bool:
        """Whether a caller requested it, rather than the schedule or the server."""
        return self.asked_by not in (SYSTEM, SCHEDULE) and not self.asked_by.startswith(ANNOUNCEMENT)


@dataclass(frozen=True)
class Room:
    """The runs that a worker has room for."""

    pushes: bool = True
    """Runs that need no server."""
    listings: bool = True
    """Runs that list a server."""
    full_push_users: Sequence[str] = ()
    full_listing_users: Sequence[str] = ()
    full_hosts: Sequence[str] = ()
    """Users and hosts that have as many runs in progress as they may."""


ANY_ROOM = Room()


@dataclass(frozen=True)
class RunSummary:
    added: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0
    embedded: int = 0
    refused_count: int = 0
    refused: Sequence[Mapping[str, Any]] = ()
    """Only the first ones; `refused_count` counts all."""
    warnings: Sequence[str] = ()

    def counts(self) -> dict[str, int]:
        names = ("added", "changed", "unchanged", "removed", "embedded")
        return {name: getattr(self, name) for name in names} | {"refused": self.refused_count}


class LeaseLost(ToolscoutError):
    """Another worker has claim the run. The former owner must not write anything."""

    code = "lease_lost"


async def enqueue(
    session: Session,
    user_id: str,
    server_id: str,
    payload: bytes | None = None,
    *,
    fetch_from_server: bool = True,
    force: bool = False,
    asked_by: str = SYSTEM,
) -> Run:
    """Queue a run, or merge the request into the server's queued run.

    A pushed list (`payload`) is indexed as it is. Without one the list is fetched from the server, or, with
    `fetch_from_server=False`, the stored tools are indexed again. `force` embeds all tools again and accepts an empty
    list.
    """
    await _lock_server_row(session, user_id, server_id)
    statement = insert(index_runs).values(
        user_id=user_id,
        id=str(uuid.uuid4()),
        server_id=server_id,
        payload=payload,
        asks=fetch_from_server and payload is None,
        force=force,
        accept_empty=force,
        asked_by=asked_by,
    )
    statement = statement.on_conflict_do_update(
        index_elements=["user_id", "server_id"],
        index_where=text("state = 'queued'"),
        set_=_merge_requests(statement.excluded, index_runs.c),
    )
    try:
        run = _to_run((await session.execute(statement.returning(index_runs))).one())
    except IntegrityError as error:
        raise NotFound("server not found") from error
    if session.is_distributed:
        await session.rows(_NOTE_WAITING_USER, {"user_id": user_id})
    await notify(session, Channel.RUNS)
    return run


async def _lock_server_row(session: Session, user_id: str, server_id: str) -> None:
    """Lock the server before the run, in the order in which a rename of the server does, to avoid a deadlock."""
    server = mcp_servers.c.user_id == user_id, mcp_servers.c.id == server_id
    await session.execute(select(mcp_servers.c.id).where(*server).with_for_update(read=True, key_share=True))


def _merge_requests(new: Any, queued: Any) -> dict[str, Any]:
    """Return the values of a queued run after a further request. `accept_empty` belongs to the list it came with."""
    return {
        "payload": func.coalesce(new.payload, queued.payload),
        "asks": or_(queued.asks, new.asks),
        "force": or_(queued.force, new.force),
        "accept_empty": case(
            (new.payload.is_not(None), new.accept_empty),
            (queued.payload.is_not(None), queued.accept_empty),
            else_=or_(queued.accept_empty, new.accept_empty),
        ),
        "asked_by": case((new.asked_by.in_([SYSTEM, SCHEDULE]), queued.asked_by), else_=new.asked_by),
    }


async def request_reindex(
    session: Session, user_id: str, server_id: str, asked_by: str, request_age_s: float, *, force: bool = False
) -> Run:
    """Coalesce concurrent requests: reuse a run that is queued, or that started listing after this request arrived.

    `force=True` always enqueues a new run. So a hundred simultaneous requests cost two listings, and only the first
    one writes a row.
    """
    if force:
        return await enqueue(session, user_id, server_id, force=True, asked_by=asked_by)
    run = await _find_reusable_run(session, user_id, server_id, request_age_s)
    return run or await enqueue(session, user_id, server_id, asked_by=asked_by)


async def _find_reusable_run(session: Session, user_id: str, server_id: str, request_age_s: float) -> Run | None:
    # Compare times of the database's clock only: with a slow local clock an earlier run would look like a later one.
    runs = index_runs.c
    started_later = runs.started_at >= func.clock_timestamp() - interval(request_age_s)
    of_server = runs.user_id == user_id, runs.server_id == server_id
    reusable = *of_server, runs.asks, or_(runs.state == "queued", started_later)
    statement = select(index_runs).where(*reusable).order_by(runs.created_at).limit(1)
    row = (await session.execute(statement)).one_or_none()
    return None if row is None else _to_run(row)


async def get_run(session: Session, user_id: str, run_id: str) -> Run:
    row = (await session.execute(select(index_runs).where(*_by_id(user_id, run_id)))).one_or_none()
    if row is None:
        raise _run_not_found()
    return _to_run(row)


async def get_runs(session: Session, user_id: str, run_ids: Collection[str]) -> dict[str, Run]:
    """Return those of the runs that exist, by id."""
    statement = select(index_runs).where(index_runs.c.user_id == user_id, index_runs.c.id.in_(run_ids))
    return {row.id: _to_run(row) for row in await session.execute(statement)}


async def list_runs(session: Session, user_id: str, server_id: str, page: PageRequest) -> Page[Run]:
    """Return a page of the server's runs, newest first."""
    runs = index_runs.c
    statement = select(index_runs).where(runs.user_id == user_id, runs.server_id == server_id)
    return await fetch_page(session, statement, (runs.created_at, runs.id), page, _to_run, descending=True)


async def get_run_owner(session: Session, run_id: str) -> str:
    """Return the user of a run, for administrators. Needs a system transaction."""
    user_id = await session.scalar(select(index_runs.c.user_id).where(index_runs.c.id == run_id))
    if user_id is None:
        raise _run_not_found()
    return str(user_id)


# The authority of a URL, which `url_guard` stores in one plain form, without credentials. No regular expressions: it is
# computed for every waiting run.
_AUTHORITY = "lower(split_part(split_part(s.url, '/', 3), '?', 1))"
_HOST = f"""
    CASE WHEN NOT r.asks OR s.transport = 'push' THEN NULL
         WHEN s.transport = 'stdio' THEN 'stdio:' || s.name
         WHEN right({_AUTHORITY}, 4) = '\\:443' THEN left({_AUTHORITY}, -4)
         ELSE {_AUTHORITY} END
"""
_IS_CLAIMABLE = "(r.state = 'queued' OR (r.state = 'running' AND r.lease_until < now()))"
# The oldest for which there is room. Users and hosts that have their share are left out before, so that a user with
# many waiting runs hides the others only until its slots are taken.
_MAX_WAITING = 1_000
_MAX_CANDIDATES = 50
_MAX_LOOKS = 3

# Read without locks: the runs may be on several nodes. `{…_of_users}` limits each table to users whose node answers.
_CANDIDATES = f"""
    WITH busy AS (
        SELECT r.user_id, count(*) AS runs FROM index_runs r
        WHERE {{r_of_users}} AND r.state = 'running' AND r.lease_until >= now() GROUP BY r.user_id
    ), waiting AS (
        SELECT r.user_id, r.id, r.created_at, server.host
        FROM index_runs r JOIN mcp_servers s ON s.user_id = r.user_id AND s.id = r.server_id
        CROSS JOIN LATERAL (SELECT {_HOST} AS host) server
        WHERE {{r_of_users}} AND {{s_of_users}} AND r.state IN ('queued', 'running')
          AND (CAST(:run_id AS text) IS NULL OR r.id = :run_id)
          AND {_IS_CLAIMABLE} AND (r.state = 'running' OR NOT EXISTS (
              SELECT 1 FROM index_runs o
              WHERE {{o_of_users}} AND o.user_id = r.user_id AND o.server_id = r.server_id AND o.state = 'running'))
          AND CASE WHEN server.host IS NULL
              THEN :pushes AND r.user_id <> ALL(CAST(:full_push_users AS text[]))
              ELSE :listings AND r.user_id <> ALL(CAST(:full_listing_users AS text[]))
                   AND server.host <> ALL(CAST(:full_hosts AS text[])) END
        ORDER BY r.created_at LIMIT {_MAX_WAITING}
    )
    SELECT waiting.user_id, waiting.id, waiting.host
    FROM waiting LEFT JOIN busy ON busy.user_id = waiting.user_id
    ORDER BY coalesce(busy.runs, 0), waiting.created_at LIMIT {_MAX_CANDIDATES}
"""
_TABLES = ("r", "s", "o")
_CANDIDATES_OF_ALL = text(_CANDIDATES.format(**{f"{table}_of_users": "true" for table in _TABLES}))
_CANDIDATES_OF_SOME = text(
    _CANDIDATES.format(
        **{f"{table}_of_users": f"{table}.user_id = ANY(CAST(:user_ids AS text[]))" for table in _TABLES}
    )
)

_NOTE_WAITING_USER = "INSERT INTO waiting_users (user_id) VALUES (%(user_id)s)"
_REACHABLE_USERS = """
    SELECT w.id, w.user_id FROM waiting_users w
    JOIN pg_catalog.pg_dist_placement p ON p.shardid = get_shard_id_for_distribution_column('index_runs', w.user_id)
    JOIN pg_catalog.pg_dist_node n ON n.groupid = p.groupid AND n.noderole = 'primary'
    WHERE n.nodename || ':' || n.nodeport <> ALL(%(lost_nodes)s) AND w.id > %(after)s
    ORDER BY w.id LIMIT %(limit)s
"""
_UNFINISHED_USERS = """
    SELECT DISTINCT user_id FROM index_runs WHERE user_id = ANY(%(user_ids)s) AND state IN ('queued', 'running')
"""
# A row can be visible a moment before its run: they are on two nodes.
_FORGET_WAITING_USERS = """
    DELETE FROM waiting_users w USING (
        SELECT user_id, id FROM waiting_users
        WHERE user_id = ANY(%(user_ids)s) AND id = ANY(%(ids)s) AND since < now() - interval '5 minutes'
        FOR UPDATE SKIP LOCKED
    ) done
    WHERE w.user_id = done.user_id AND w.id = done.id
"""
WAITING_USER_RETENTION = timedelta(days=1)
# Checked again on the locked row: another worker may just have claimed it, or be about to.
_LOCK_CANDIDATE = text(
    f"""
    SELECT clock_timestamp() AS started_at FROM index_runs r
    WHERE r.user_id = :user_id AND r.id = :id AND {_IS_CLAIMABLE} FOR UPDATE SKIP LOCKED
    """
)
_CLAIM = text(
    """
    UPDATE index_runs SET state = 'running', attempts = attempts + 1, lease_token = lease_token + 1,
           lease_until = now() + make_interval(secs => :lease_s), started_at = :started_at
    WHERE user_id = :user_id AND id = :id
    RETURNING id, user_id, server_id, asks AS fetch_from_server, force, accept_empty, payload, attempts, lease_token,
              asked_by
    """
)


async def claim_run(
    session: Session,
    lease_s: float,
    run_id: str | None = None,
    room: Room = ANY_ROOM,
    *,
    user_ids: Sequence[str] | None = None,
) -> Claim | None:
    """Claim a run that is queued or whose lease has expired, or only `run_id`. Needs a system transaction.

    The user with the fewest runs in progress comes first, then the oldest run. With `user_ids`, only runs of these
    users are looked at.
    """
    statement = _CANDIDATES_OF_ALL if user_ids is None else _CANDIDATES_OF_SOME.bindparams(user_ids=list(user_ids))
    candidates = statement.bindparams(
        run_id=run_id,
        pushes=room.pushes,
        listings=room.listings,
        # lists, because the driver sends tuples as records
        full_push_users=list(room.full_push_users),
        full_listing_users=list(room.full_listing_users),
        full_hosts=list(room.full_hosts),
    )
    try:
        for _ in range(_MAX_LOOKS):
            found = (await session.execute(candidates)).all()
            for candidate in found:
                if (claim := await _claim_candidate(session, candidate, lease_s)) is not None:
                    return claim
            if len(found) < _MAX_CANDIDATES:
                return None
    except IntegrityError:
        pass  # another worker has just started the server's other run
    return None


async def claim_reachable_run(
    session: Session, lost_nodes: Sequence[str], lease_s: float, run_id: str | None = None, room: Room = ANY_ROOM
) -> Claim | None:
    """Like `claim_run`, among the users of a distributed database whose nodes answer, while others are away.

    Users who turn out to have no unfinished run are forgotten, so that the next call has fewer to look at.
    """
    after = 0
    while True:
        page = {"lost_nodes": list(lost_nodes), "after": after, "limit": _MAX_WAITING}
        waiting = [(row_id, user_id) for row_id, user_id in await session.rows(_REACHABLE_USERS, page)]
        user_ids = sorted({user_id for _, user_id in waiting})
        if user_ids:
            claim = await claim_run(session, lease_s, run_id, room, user_ids=user_ids)
            if claim is not None:
                return claim
            await _forget_finished_users(session, waiting, user_ids)
        if len(waiting) < _MAX_WAITING:
            return None
        after = waiting[-1][0]


async def _forget_finished_users(session: Session, waiting: Sequence[tuple[int, str]], user_ids: Sequence[str]) -> None:
    found = await session.rows(_UNFINISHED_USERS, {"user_ids": list(user_ids)})
    finished = set(user_ids) - {user_id for (user_id,) in found}
    if finished:
        ids = [row_id for row_id, user_id in waiting if user_id in finished]
        await session.rows(_FORGET_WAITING_USERS, {"user_ids": sorted(finished), "ids": ids})


def expired_rows() -> list[Delete]:
    """Return the statements that delete expired rows of all users."""
    return [delete(waiting_users).where(waiting_users.c.since < func.now() - WAITING_USER_RETENTION)]


async def _claim_candidate(session: Session, candidate: Row[Any], lease_s: float) -> Claim | None:
    """Return None if another worker has claimed the run, or has locked it to do so."""
    run = {"user_id": candidate.user_id, "id": candidate.id}
    started_at = await session.scalar(_LOCK_CANDIDATE.bindparams(**run))
    if started_at is None:
        return None
    row = (await session.execute(_CLAIM.bindparams(**run, lease_s=lease_s, started_at=started_at))).one()
    return Claim(**row._asdict(), lease_s=lease_s, host=candidate.host)


async def report_progress(session: Session, claim: Claim, done: int, total: int) -> None:
    """Store the progress and renew the lease. Raises `LeaseLost` if another worker has claimed the run."""
    lease_until = func.now() + interval(claim.lease_s)
    statement = update(index_runs).where(*_owned_by(claim)).values(done=done, total=total, lease_until=lease_until)
    if (await session.execute(statement)).rowcount == 0:
        raise LeaseLost("another worker has claimed the run")


async def renew_lease(session: Session, claim: Claim) -> None:
    lease_until = func.now() + interval(claim.lease_s)
    await session.execute(update(index_runs).where(*_owned_by(claim)).values(lease_until=lease_until))


async def release(session: Session, claim: Claim, pause_s: float) -> None:
    """Let any worker continue the run after the pause."""
    lease_until = func.now() + interval(pause_s)
    await session.execute(update(index_runs).where(*_owned_by(claim)).values(lease_until=lease_until))


async def requeue(session: Session, claim: Claim) -> None:
    """Put the run back into the queue after a clean stop, which does not count as an attempt.

    If the server's next run is queued already, this run stays `running` with an expired lease, and so comes first.
    """
    # A full row lock: `enqueue` holds a key-share lock, which a weaker lock would not conflict with.
    server = mcp_servers.c.user_id == claim.user_id, mcp_servers.c.id == claim.server_id
    await session.execute(select(mcp_servers.c.id).where(*server).with_for_update())
    runs = index_runs.c
    queued = runs.user_id == claim.user_id, runs.server_id == claim.server_id, runs.state == "queued"
    has_queued = await session.scalar(select(runs.id).where(*queued)) is not None
    values = {"lease_until": func.now()} if has_queued else {"lease_until": null(), "state": "queued"}
    statement = update(index_runs).where(*_owned_by(claim)).values(attempts=runs.attempts - 1, **values)
    await session.execute(statement)
    await notify(session, Channel.RUNS)


async def retry_later(session: Session, claim: Claim, cause: str, message: str, delay_s: float) -> None:
    """Keep the run in state `running`; a worker claims it again when the shortened lease has expired."""
    await lock_server(session, claim.user_id, claim.server_id)
    values = {"lease_until": func.now() + interval(delay_s), "error": {"cause": cause, "message": message}}
    if (await session.execute(update(index_runs).where(*_owned_by(claim)).values(**values))).rowcount:
        await _record_failure(session, claim, cause, message)


async def fence(session: Session, claim: Claim) -> None:
    """Lock the run's row until the end of the transaction. Raises `LeaseLost` if another worker has claimed the run.

    A transaction that also locks the server must lock it first, in the order of a server's deletion.
    """
    statement = select(index_runs.c.id).where(*_owned_by(claim)).with_for_update()
    if (await session.execute(statement)).one_or_none() is None:
        raise LeaseLost("another worker has claimed the run")


async def succeed(session: Session, claim: Claim, summary: RunSummary, total: int) -> None:
    values = {
        "state": "succeeded",
        "done": total,
        "total": total,
        "counts": summary.counts(),
        "refused": list(summary.refused),
        "warnings": list(summary.warnings),
        "error": null(),
    }
    await _finish(session, claim, values, SUCCEEDED)


async def fail(session: Session, claim: Claim, cause: str, message: str, summary: RunSummary) -> None:
    values = {
        "state": "failed",
        "counts": summary.counts(),
        "refused": list(summary.refused),
        "warnings": list(summary.warnings),
        "error": {"cause": cause, "message": message},
    }
    await lock_server(session, claim.user_id, claim.server_id)
    if await _finish(session, claim, values, cause):
        await _record_failure(session, claim, cause, message)


async def _record_failure(session: Session, claim: Claim, cause: str, message: str) -> None:
    former = await get_server(session, claim.user_id, claim.server_id)
    await record_failure(session, claim.user_id, claim.server_id, cause, message)
    # members must see that a sign-in is missing; other failures they meet themselves
    if claim.user_id == SHARED_OWNER and cause == AUTHORIZATION_REQUIRED != former.last_cause:
        await update_sharing(session, claim.server_id)


async def _finish(session: Session, claim: Claim, values: Mapping[str, Any], outcome: str) -> bool:
    """Write the end of the run and its audit event. Return False if another worker has claimed the run."""
    # read before: Citus takes no clock in an update
    elapsed_s = func.extract("epoch", func.clock_timestamp() - index_runs.c.started_at)
    duration_s = await session.scalar(select(elapsed_s).where(*_owned_by(claim)))
    end = {"payload": None, "lease_until": None, "finished_at": func.now()}
    statement = update(index_runs).where(*_owned_by(claim)).values(**values, **end)
    if (await session.execute(statement)).rowcount == 0:
        return False
    await record_event(
        session,
        claim.user_id,
        claim.asked_by,
        "server.reindex",
        claim.server_id,
        outcome=outcome,
        duration_ms=float(duration_s) * 1000,
    )
    await _delete_oldest(session, claim)
    return True


async def _delete_oldest(session: Session, claim: Claim) -> None:
    runs = index_runs.c
    of_server = runs.user_id == claim.user_id, runs.server_id == claim.server_id, runs.finished_at.is_not(None)
    oldest = select(runs.id).where(*of_server).order_by(runs.created_at.desc()).offset(MAX_FINISHED_RUNS)
    await session.execute(delete(index_runs).where(*of_server, runs.id.in_(oldest)))


def _by_id(user_id: str, run_id: str) -> tuple[Any, Any]:
    return index_runs.c.user_id == user_id, index_runs.c.id == run_id


def _owned_by(claim: Claim) -> tuple[Any, ...]:
    is_leased = index_runs.c.lease_token == claim.lease_token, index_runs.c.state == "running"
    return (*_by_id(claim.user_id, claim.id), *is_leased)


def interval(seconds: Any) -> Any:
    """Return a Postgres interval of so many seconds."""
    return func.make_interval(0, 0, 0, 0, 0, 0, seconds)


def _run_not_found() -> NotFound:
    return NotFound("index run not found")


def _to_run(row: Row[Any]) -> Run:
    return to_dataclass(Run, row)
