"""Index runs as rows: queued, leased, fenced. What was accepted is done, also after a crash.

At most one run is queued and one running for a server: a push that finds one queued takes its place in the queue with
the newer list. A worker owns a run while its lease token stands in the row; one that wakes up after its lease has
passed on finds another token there and writes nothing.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Row, case, delete, func, null, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError

from app import audit
from app.catalog.servers import record_failure
from app.catalog.visibility import lock_server
from app.db.engine import Session
from app.db.pagination import Page, PageRequest, fetch_page
from app.db.rows import to_dataclass
from app.db.tables import index_runs, mcp_servers
from app.errors import NotFound, ToolscoutError

MAX_ATTEMPTS = 3
KEPT_RUNS = 50
RUNS_OF_ONE_USER = 8
"""Running at once: servers of one user that all hang must not keep the others waiting."""

SYSTEM = "system"
SCHEDULE = "schedule"

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
        """Also of a run that has not counted anything yet."""
        return RunSummary().counts() | dict(self.counts)

    @property
    def finished(self) -> bool:
        return self.state in ("succeeded", "failed")


@dataclass(frozen=True)
class Claim:
    """A run that this worker owns for now."""

    id: str
    user_id: str
    server_id: str
    asks: bool
    force: bool
    accept_empty: bool
    payload: bytes | None
    attempts: int
    lease_token: int
    asked_by: str
    lease_s: float


@dataclass(frozen=True)
class RunSummary:
    added: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0
    embedded: int = 0
    refused_count: int = 0
    refused: Sequence[Mapping[str, Any]] = ()
    """The first of them; `refused_count` counts them all."""
    warnings: Sequence[str] = ()

    def counts(self) -> dict[str, int]:
        names = ("added", "changed", "unchanged", "removed", "embedded")
        return {name: getattr(self, name) for name in names} | {"refused": self.refused_count}


class LeaseLost(ToolscoutError):
    """Another worker has taken the run over. Whoever sees this must not write."""

    code = "lease_lost"


async def enqueue(
    session: Session,
    user_id: str,
    server_id: str,
    payload: bytes | None = None,
    *,
    asks: bool = True,
    force: bool = False,
    asked_by: str = SYSTEM,
) -> Run:
    """A pushed list is indexed as it is; without one the server is asked, unless what is stored of it is enough.
    `force` embeds everything anew, and accepts an empty list. The latter belongs to the list that it came with."""
    # before the run, as whoever renames the server does: two who wait for each other would both wait in vain
    server = mcp_servers.c.user_id == user_id, mcp_servers.c.id == server_id
    await session.execute(select(mcp_servers.c.id).where(*server).with_for_update(read=True, key_share=True))
    statement = insert(index_runs).values(
        user_id=user_id,
        id=str(uuid.uuid4()),
        server_id=server_id,
        payload=payload,
        asks=asks and payload is None,
        force=force,
        accept_empty=force,
        asked_by=asked_by,
    )
    statement = statement.on_conflict_do_update(
        index_elements=["user_id", "server_id"],
        index_where=text("state = 'queued'"),
        set_=_merged(statement.excluded, index_runs.c),
    )
    try:
        return _run((await session.execute(statement.returning(index_runs))).one())
    except IntegrityError as error:
        raise NotFound("there is no such server") from error


def _merged(new: Any, known: Any) -> dict[str, Any]:
    """What becomes of a run that is queued already when another is wanted."""
    return {
        "payload": func.coalesce(new.payload, known.payload),
        "asks": or_(known.asks, new.asks),
        "force": or_(known.force, new.force),
        "accept_empty": case(
            (new.payload.is_not(None), new.accept_empty),
            (known.payload.is_not(None), known.accept_empty),
            else_=or_(known.accept_empty, new.accept_empty),
        ),
        "asked_by": case((new.asked_by.in_([SYSTEM, SCHEDULE]), known.asked_by), else_=new.asked_by),
    }


async def request_reindex(
    session: Session, user_id: str, server_id: str, asked_by: str, seconds_ago: float, *, force: bool = False
) -> Run:
    """Whoever asked before a run began to ask the server is served by that run: a hundred who ask at once cost two
    listings, not a hundred, and only the first of them writes. Not so whoever wants everything embedded anew."""
    if force:
        return await enqueue(session, user_id, server_id, force=True, asked_by=asked_by)
    run = await _begins_since(session, user_id, server_id, seconds_ago)
    return run or await enqueue(session, user_id, server_id, asked_by=asked_by)


async def _begins_since(session: Session, user_id: str, server_id: str, seconds_ago: float) -> Run | None:
    """By the database's clock alone: one that goes slow would make a run of before look like one of after."""
    runs = index_runs.c
    begun = runs.started_at >= func.clock_timestamp() - seconds(seconds_ago)
    serving = runs.user_id == user_id, runs.server_id == server_id, runs.asks, or_(runs.state == "queued", begun)
    statement = select(index_runs).where(*serving).order_by(runs.created_at).limit(1)
    row = (await session.execute(statement)).one_or_none()
    return None if row is None else _run(row)


async def get_run(session: Session, user_id: str, run_id: str) -> Run:
    row = (await session.execute(select(index_runs).where(*_this(user_id, run_id)))).one_or_none()
    if row is None:
        raise _missing()
    return _run(row)


async def list_runs(session: Session, user_id: str, server_id: str, page: PageRequest) -> Page[Run]:
    """Newest first."""
    runs = index_runs.c
    statement = select(index_runs).where(runs.user_id == user_id, runs.server_id == server_id)
    return await fetch_page(session, statement, (runs.created_at, runs.id), page, _run, descending=True)


async def get_run_owner(session: Session, run_id: str) -> str:
    """For administrators, whom the id alone tells the run: needs the system's scope."""
    user_id = await session.scalar(select(index_runs.c.user_id).where(index_runs.c.id == run_id))
    if user_id is None:
        raise _missing()
    return str(user_id)


_CLAIM = text(
    f"""
    UPDATE index_runs SET state = 'running', attempts = attempts + 1, lease_token = lease_token + 1,
           lease_until = now() + make_interval(secs => :lease_s), started_at = clock_timestamp()
    WHERE (user_id, id) = (
        SELECT r.user_id, r.id FROM index_runs r
        WHERE (CAST(:run_id AS text) IS NULL OR r.id = :run_id)
          AND ((r.state = 'running' AND r.lease_until < now())
           OR (r.state = 'queued' AND NOT EXISTS (
                  SELECT FROM index_runs o
                  WHERE o.user_id = r.user_id AND o.server_id = r.server_id AND o.state = 'running')
              AND {RUNS_OF_ONE_USER} > (
                  SELECT count(*) FROM index_runs o WHERE o.user_id = r.user_id AND o.state = 'running')))
        ORDER BY r.created_at LIMIT 1 FOR UPDATE SKIP LOCKED
    )
    RETURNING id, user_id, server_id, asks, force, accept_empty, payload, attempts, lease_token, asked_by
    """
)


async def claim(session: Session, lease_s: float, run_id: str | None = None) -> Claim | None:
    """The oldest run that waits, or whose worker has gone silent; or only this one. Needs the system's scope."""
    try:
        row = (await session.execute(_CLAIM.bindparams(lease_s=lease_s, run_id=run_id))).one_or_none()
    except IntegrityError:
        return None  # another worker began the server's other run in this very moment
    return None if row is None else Claim(**row._asdict(), lease_s=lease_s)


async def report_progress(session: Session, claimed: Claim, done: int, total: int) -> None:
    """Tells the watchers, and keeps the lease. Raises `LeaseLost` where it has passed on."""
    lease_until = func.now() + seconds(claimed.lease_s)
    statement = update(index_runs).where(*_owned(claimed)).values(done=done, total=total, lease_until=lease_until)
    if (await session.execute(statement)).rowcount == 0:
        raise LeaseLost("the run has passed on to another worker")


async def renew_lease(session: Session, claimed: Claim) -> None:
    lease_until = func.now() + seconds(claimed.lease_s)
    await session.execute(update(index_runs).where(*_owned(claimed)).values(lease_until=lease_until))


async def release(session: Session, claimed: Claim, pause_s: float) -> None:
    """So that another worker can go on after the pause."""
    values = {"lease_until": func.now() + seconds(pause_s)}
    await session.execute(update(index_runs).where(*_owned(claimed)).values(**values))


async def requeue(session: Session, claimed: Claim) -> None:
    """Into the queue, where it is seen to wait; a clean stop does not count as an attempt. Where the server's next run
    has the place there already, it stays before that one, for whoever takes it first."""
    # so that nobody queues one while we look: those who do hold the row too weakly for any lesser lock
    server = mcp_servers.c.user_id == claimed.user_id, mcp_servers.c.id == claimed.server_id
    await session.execute(select(mcp_servers.c.id).where(*server).with_for_update())
    runs = index_runs.c
    queued = runs.user_id == claimed.user_id, runs.server_id == claimed.server_id, runs.state == "queued"
    taken = await session.scalar(select(runs.id).where(*queued)) is not None
    place = {"lease_until": func.now()} if taken else {"lease_until": null(), "state": "queued"}
    await session.execute(update(index_runs).where(*_owned(claimed)).values(attempts=runs.attempts - 1, **place))


async def retry_later(session: Session, claimed: Claim, cause: str, message: str, delay_s: float) -> None:
    """The run stays what it is, a run under way, and is taken up again when its lease has passed."""
    await lock_server(session, claimed.user_id, claimed.server_id)
    values = {"lease_until": func.now() + seconds(delay_s), "error": {"cause": cause, "message": message}}
    if (await session.execute(update(index_runs).where(*_owned(claimed)).values(**values))).rowcount:
        await record_failure(session, claimed.user_id, claimed.server_id, cause, message)


async def fence(session: Session, claimed: Claim) -> None:
    """Holds the run's row until the transaction ends, or raises `LeaseLost`. Whoever locks the server too locks it
    first, as a server's deletion does, which takes its runs along."""
    statement = select(index_runs.c.id).where(*_owned(claimed)).with_for_update()
    if (await session.execute(statement)).one_or_none() is None:
        raise LeaseLost("the run has passed on to another worker")


async def succeed(session: Session, claimed: Claim, outcome: RunSummary, total: int) -> None:
    values = {
        "state": "succeeded",
        "done": total,
        "total": total,
        "counts": outcome.counts(),
        "refused": list(outcome.refused),
        "warnings": list(outcome.warnings),
        "error": null(),
    }
    await _end(session, claimed, values, audit.SUCCEEDED)


async def fail(session: Session, claimed: Claim, cause: str, message: str, outcome: RunSummary) -> None:
    values = {
        "state": "failed",
        "counts": outcome.counts(),
        "refused": list(outcome.refused),
        "warnings": list(outcome.warnings),
        "error": {"cause": cause, "message": message},
    }
    await lock_server(session, claimed.user_id, claimed.server_id)
    if await _end(session, claimed, values, cause):
        await record_failure(session, claimed.user_id, claimed.server_id, cause, message)


async def _end(session: Session, claimed: Claim, values: Mapping[str, Any], outcome: str) -> bool:
    """False where the run has passed on to another worker, and nothing was written."""
    ended = {"payload": None, "lease_until": None, "finished_at": func.now()}
    statement = update(index_runs).where(*_owned(claimed)).values(**values, **ended)
    took_s = func.extract("epoch", func.clock_timestamp() - index_runs.c.started_at)
    duration_s = await session.scalar(statement.returning(took_s))
    if duration_s is None:
        return False
    await audit.record(
        session,
        claimed.user_id,
        claimed.asked_by,
        "server.reindex",
        claimed.server_id,
        outcome=outcome,
        duration_ms=float(duration_s) * 1000,
    )
    await _forget_oldest(session, claimed)
    return True


async def _forget_oldest(session: Session, claimed: Claim) -> None:
    runs = index_runs.c
    of_server = runs.user_id == claimed.user_id, runs.server_id == claimed.server_id, runs.finished_at.is_not(None)
    oldest = select(runs.id).where(*of_server).order_by(runs.created_at.desc()).offset(KEPT_RUNS)
    await session.execute(delete(index_runs).where(*of_server, runs.id.in_(oldest)))


def _this(user_id: str, run_id: str) -> tuple[Any, Any]:
    return index_runs.c.user_id == user_id, index_runs.c.id == run_id


def _owned(claimed: Claim) -> tuple[Any, ...]:
    mine = index_runs.c.lease_token == claimed.lease_token, index_runs.c.state == "running"
    return (*_this(claimed.user_id, claimed.id), *mine)


def seconds(count: Any) -> Any:
    """As an interval."""
    return func.make_interval(0, 0, 0, 0, 0, 0, count)


def _missing() -> NotFound:
    return NotFound("there is no such run")


def _run(row: Row[Any]) -> Run:
    return to_dataclass(Run, row)
