"""Checks an installation step by step and says, for each step, what is wrong and what to do about it."""

import asyncio
import shutil
from contextlib import AsyncExitStack
from dataclasses import dataclass

from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from app.catalog.servers import count_undecryptable
from app.container import make_configured_embedder, read_active_model
from app.db.engine import Database, driver_url
from app.db.migrate import check_revision_known, check_server, current_revision, head_revision
from app.errors import ConfigurationError, ToolscoutError
from app.local_postgres.database import connect_database, has_data
from app.local_postgres.secret_key import make_sealer
from app.mcp_client.stdio_servers import StdioServerRegistry
from app.settings import Settings, find_typos


@dataclass(frozen=True)
class CheckResult:
    subject: str
    ok: bool
    message: str


async def examine(settings: Settings) -> list[CheckResult]:
    """Later steps stand on earlier ones: it ends at the first that fails. It changes nothing."""
    findings: list[CheckResult] = []
    async with AsyncExitStack() as closing:
        try:
            findings.append(_settings(settings))
            findings += [CheckResult("misspelt", ok=False, message=message) for message in find_typos()]
            findings += _programs(settings)
            url = await closing.enter_async_context(connect_database(settings))
            findings.append(await asyncio.to_thread(_database, settings, url))
            if findings[-1].ok:
                findings.append(await _secrets(settings, url))
                findings.append(await _embedder(settings, url))
        except ToolscoutError as error:
            seen = {finding.subject for finding in findings}
            subject = next(name for name in ("settings", "database", "secrets", "embedder") if name not in seen)
            findings.append(CheckResult(subject, ok=False, message=error.message))
    return findings


def _settings(settings: Settings) -> CheckResult:
    if has_data(settings):
        make_sealer(settings)
    where = "embedded" if settings.embedded else "DATABASE_URL"
    return CheckResult("settings", ok=True, message=f"{settings.environment}, Postgres: {where}")


def _programs(settings: Settings) -> list[CheckResult]:
    """Only what is wrong with them."""
    try:
        programs = StdioServerRegistry.read(settings.stdio_servers).programs
    except ConfigurationError as error:
        return [CheckResult("stdio", ok=False, message=error.message)]
    missing = {name: program.argv[0] for name, program in programs.items() if shutil.which(program.argv[0]) is None}
    return [
        CheckResult("stdio", ok=False, message=f"{name}: there is no program {command!r}{_looked_for(command)}")
        for name, command in missing.items()
    ]


def _looked_for(command: str) -> str:
    """A path is not looked for elsewhere."""
    return " that can be run" if "/" in command else " in the PATH of this process"


async def _secrets(settings: Settings, url: str) -> CheckResult:
    database = Database(url, pool_size=1)
    try:
        async with database.system_transaction() as session:
            broken, total = await count_undecryptable(session, make_sealer(settings))
    finally:
        await database.close()
    if broken:
        return CheckResult(
            "secrets", ok=False, message=f"{broken} of {total} stored credentials do not open with these keys"
        )
    return CheckResult("secrets", ok=True, message=f"{total} stored credentials open")


def _database(settings: Settings, url: str) -> CheckResult:
    engine = create_engine(driver_url(url), poolclass=NullPool, connect_args={"connect_timeout": 5})
    try:
        with engine.connect() as connection:
            check_server(connection, production=settings.environment == "production")
            version = connection.scalar(text("SHOW server_version"))
            current, newest = current_revision(connection), head_revision()
    except SQLAlchemyError as error:
        return CheckResult("database", ok=False, message=str(error.__cause__ or error).partition("\n")[0])
    finally:
        engine.dispose()
    check_revision_known(current)
    if current != newest:
        return CheckResult(
            "database", ok=False, message=f"the schema is at {current}, not {newest}: `toolscout migrate`"
        )
    return CheckResult("database", ok=True, message=f"Postgres {version}, schema {current}")


async def _embedder(settings: Settings, url: str) -> CheckResult:
    embedder = await asyncio.to_thread(make_configured_embedder, settings)
    try:
        dimension = (await embedder.embed_queries(["is anyone there?"])).shape[1]
    finally:
        await embedder.aclose()
    active = await asyncio.to_thread(read_active_model, url)
    if active is not None and active.id != embedder.model:
        message = (
            f"the settings name {embedder.model}, but {active.id} is active and goes on serving: `toolscout model use`"
        )
        return CheckResult("embedder", ok=False, message=message)
    return CheckResult("embedder", ok=True, message=f"{embedder.model} answers, {dimension} dimensions")
