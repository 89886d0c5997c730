"""Checks an installation step by step; each result says what is wrong and what to do."""

import asyncio
import shutil
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import psycopg
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from app.auth.oidc.single_sign_on import make_single_sign_on
from app.catalog.servers import count_undecryptable
from app.cloud.client import make_cloud_client
from app.connections.repository import count_undecryptable_accounts
from app.db import read_replica
from app.db.distribute import find_remaining, is_distributed
from app.db.engine import Database, driver_url
from app.db.migrate import check_revision_known, current_revision, head_revision
from app.db.nodes import ask_nodes
from app.db.poolers import leads_to_shared_connections, refuse_shared_connections
from app.db.read_replica import find_root_cause
from app.db.requirements import MissingRequirement, explain_connection_error, find_missing
from app.db.scope import APP_ROLE
from app.db.server_facts import find_problem, read_facts
from app.embeddings.base import Embedder
from app.embeddings.calibration import is_english_only
from app.embeddings.factory import is_earlier_default, make_configured_embedder
from app.embeddings.repository import read_active_model
from app.errors import (
    CloudFailed,
    ConfigurationError,
    DatabaseDown,
    IdentityProviderDown,
    QueryFailed,
    ToolscoutError,
)
from app.local_postgres.database import (
    check_pooler,
    connect_database,
    has_data,
    make_pool,
    refuse_another_database,
)
from app.local_postgres.secret_key import make_sealer
from app.mcp_client.stdio_servers import read_stdio_servers
from app.observability.metrics import Metrics
from app.registry.client import make_registry_client
from app.search.glossary import Glossary
from app.settings import Settings, find_typos
from app.usage.stats import count_not_english

_MIN_DISCOVERIES = 50
_MIN_NOT_ENGLISH = 0.2
_REPLICA_S = 5.0
"""How long the read replica may take to answer."""


@dataclass(frozen=True)
class CheckResult:
    subject: str
    ok: bool
    message: str
    is_warning: bool = False
    """It works, but not as well as it should."""
    statements: Sequence[str] = ()
    """SQL that a superuser runs to mend it, for psql."""


_REPLICA_BEHIND_POOLER = CheckResult(
    "replica",
    ok=False,
    message=f"{read_replica.SETTING} leads to a pooler in transaction mode, where connections are shared: let it lead "
    "to Postgres itself, or to a pooler in session mode",
)


async def check_installation(settings: Settings) -> list[CheckResult]:
    """Run all checks, up to the first one that fails: later checks depend on earlier ones. Nothing is changed."""
    results: list[CheckResult] = []
    async with AsyncExitStack() as closing:
        try:
            results.append(_check_settings(settings))
            results += [CheckResult("misspelt", ok=False, message=message) for message in find_typos()]
            results += _check_stdio_programs(settings)
            url = await closing.enter_async_context(connect_database(settings))
            # first: of another database, the next check would say that its schema is old, or missing
            results += await _compare_databases(settings, url)
            if not any(result.subject == "pooler" for result in results):
                results += await asyncio.to_thread(_check_database, settings, url)
            if results[-1].ok:
                results += await _check_pooler(settings, url)
            if results[-1].ok:
                results += await _check_read_replica(settings, url)
                results.append(await _check_secrets(settings, url))
                results.append(await _check_embedder(settings, url))
                results += await _check_languages(settings, url)
                results += await _check_cloud(settings)
                results += await _check_registry(settings)
                results += await _check_identity_provider(settings)
        except ToolscoutError as error:
            checked = {result.subject for result in results}
            subject = next(name for name in ("settings", "database", "secrets", "embedder") if name not in checked)
            results.append(CheckResult(subject, ok=False, message=error.message))
    return results


def _check_settings(settings: Settings) -> CheckResult:
    if settings.database_url is not None:
        driver_url(settings.database_url.get_secret_value())  # first: another database cannot be used at all
    if settings.read_database_url is not None:
        driver_url(settings.read_database_url.get_secret_value(), read_replica.SETTING)
    if has_data(settings):
        make_sealer(settings)
    Glossary(settings.glossary_file)
    where = "embedded" if settings.uses_embedded_db else "DATABASE_URL"
    return CheckResult("settings", ok=True, message=f"{settings.environment}, Postgres: {where}")


def _check_stdio_programs(settings: Settings) -> list[CheckResult]:
    """Return only failures."""
    try:
        programs = read_stdio_servers(settings).programs
    except ConfigurationError as error:
        return [CheckResult("stdio", ok=False, message=error.message)]
    commands = {name: program.argv[0] for name, program in programs.items()}
    return [
        CheckResult("stdio", ok=False, message=f"{name}: {_explain_missing_program(command)}")
        for name, command in commands.items()
        if shutil.which(command) is None
    ]


def _explain_missing_program(command: str) -> str:
    """PATH is not searched for a command that contains a slash."""
    return f"{command!r} is not an executable file" if "/" in command else f"{command!r} is not in the PATH"


def _check_database(settings: Settings, url: str) -> list[CheckResult]:
    """Return one result if all is well, otherwise one for each thing that is missing."""
    production, setting = settings.environment == "production", settings.direct_database_setting
    engine = create_engine(driver_url(url, setting), poolclass=NullPool, connect_args={"connect_timeout": 5})
    try:
        with engine.connect() as connection:
            refuse_shared_connections(connection, url, setting)
            if missing := find_missing(connection, production=production, setting=setting):
                return [_report_missing(requirement) for requirement in missing]
            version = connection.scalar(text("SHOW server_version"))
            current, head = current_revision(connection), head_revision()
            nodes = _check_nodes(connection) if is_distributed(connection) else []
    except SQLAlchemyError as error:
        return [_report_missing(explain_connection_error(url, str(error.__cause__ or error), setting))]
    finally:
        engine.dispose()
    check_revision_known(current)
    if current != head:
        found = "there is no schema yet" if current is None else f"the schema is at revision {current}, not {head}"
        message = f"{found}: run `toolscout migrate`"
        return [CheckResult("database", ok=False, message=message)]
    if any(not node.ok for node in nodes):
        return nodes
    return [*nodes, CheckResult("database", ok=True, message=f"Postgres {version}, schema {current}")]


def _check_nodes(connection: Connection) -> list[CheckResult]:
    """Return one result if all nodes of a distributed database answer, otherwise one for each thing that is wrong."""
    problems = []
    if remaining := find_remaining(connection):
        problems.append(f"{len(remaining)} tables are not distributed yet: run `toolscout migrate --distributed`")
    connection.execute(text(f"SET LOCAL ROLE {APP_ROLE}"))
    nodes = ask_nodes(connection)
    connection.rollback()
    problems += [f"the node {node} does not answer: {result}" for node, answers, result in nodes if not answers]
    if problems:
        return [CheckResult("nodes", ok=False, message=problem) for problem in problems]
    return [CheckResult("nodes", ok=True, message=f"all {len(nodes)} nodes answer")]


async def _check_read_replica(settings: Settings, url: str) -> list[CheckResult]:
    """Return whether searches can be read from the replica, if there is one. Without it, the primary answers."""
    if settings.read_database_url is None:
        return []
    read_url = settings.read_database_url.get_secret_value()
    async with AsyncExitStack() as closing:
        primary, replica = Database(url, pool_size=1), Database(read_url, pool_size=1, setting=read_replica.SETTING)
        for database in (primary, replica):
            closing.push_async_callback(database.close)
        found = await read_facts(primary)
        if primary.is_distributed:
            problem = (
                f"{read_replica.SETTING} is ignored: the database of DATABASE_URL is distributed over several nodes"
            )
            return [CheckResult("replica", ok=False, message=problem)]
        try:
            async with asyncio.timeout(_REPLICA_S):
                # first: the settings of a session would stay behind for other clients
                if await leads_to_shared_connections(read_url):
                    return [_REPLICA_BEHIND_POOLER]
                copy = await read_facts(replica)
        except (TimeoutError, DatabaseDown, QueryFailed, SQLAlchemyError, psycopg.Error) as error:
            return [_explain_unreachable_replica(read_url, error)]
    if (wrong := find_problem(found, copy)) is not None:
        return [CheckResult("replica", ok=False, message=f"{read_replica.SETTING} is not used: {wrong}")]
    message = f"Postgres {copy.version}, a replica, {copy.lag_behind(found):,} bytes behind"
    if copy.replay_age_s is not None:
        message += f"; the last commit that it has replayed is {copy.replay_age_s:.0f} s old"
    return [CheckResult("replica", ok=True, message=message)]


def _explain_unreachable_replica(url: str, error: Exception) -> CheckResult:
    """It is a warning: all is answered without it."""
    why = explain_connection_error(url, find_root_cause(error), read_replica.SETTING).message
    message = f"the read replica does not answer as it should, so that the primary answers all: {why}"
    return CheckResult("replica", ok=True, message=message, is_warning=True)


def _report_missing(requirement: MissingRequirement) -> CheckResult:
    return CheckResult("database", ok=False, message=requirement.message, statements=requirement.statements)


async def _compare_databases(settings: Settings, url: str) -> list[CheckResult]:
    """Return a result only if the pooler leads to another database than the URL around it."""
    try:
        await refuse_another_database(settings, url)
    except ConfigurationError as error:
        return [CheckResult("pooler", ok=False, message=error.message)]
    return []


async def _check_pooler(settings: Settings, url: str) -> list[CheckResult]:
    """Return nothing if the settings name no pooler. One that they do not name has failed the check of the database."""
    if settings.database_pooler == "none":
        return []
    try:
        advice = await check_pooler(settings, url)
    except ConfigurationError as error:
        return [CheckResult("pooler", ok=False, message=error.message)]
    message = f"DATABASE_URL leads to a pooler, as {settings.database_pooler} says" if advice is None else advice
    return [CheckResult("pooler", ok=True, message=message, is_warning=advice is not None)]


async def _check_secrets(settings: Settings, url: str) -> CheckResult:
    database = make_pool(settings, url, size=1)
    try:
        async with database.system_transaction() as session:
            sealer = make_sealer(settings)
            broken, total = await count_undecryptable(session, sealer)
            broken_accounts, accounts = await count_undecryptable_accounts(session, sealer)
            broken, total = broken + broken_accounts, total + accounts
    finally:
        await database.close()
    if broken:
        message = f"{broken} of {total} stored credentials cannot be decrypted with these keys"
        return CheckResult("secrets", ok=False, message=message)
    return CheckResult("secrets", ok=True, message=f"all {total} stored credentials can be decrypted")


async def _check_embedder(settings: Settings, url: str) -> CheckResult:
    embedder = await asyncio.to_thread(make_configured_embedder, settings)
    try:
        dimension, seconds = await _probe_embedder(embedder)
    finally:
        await embedder.aclose()
    active = await asyncio.to_thread(read_active_model, url)
    if active is not None and active.id != embedder.model:
        command = f"run `toolscout model use {embedder.model}` to switch"
        if is_earlier_default(settings, active.id):
            message = f"{active.id} is the active model; this version ships {embedder.model}: {command}"
            return CheckResult("embedder", ok=True, message=message)
        message = (
            f"the settings name {embedder.model}, but {active.id} is the active model and keeps serving: {command}"
        )
        return CheckResult("embedder", ok=False, message=message)
    if active is not None and active.dimension != dimension:
        message = (
            f"{embedder.model} returns {dimension} dimensions, but its stored vectors have {active.dimension}, so that "
            "all messages are searched by words alone: another model answers under this name. Restore the former one, "
            "or give the new one a name of its own and switch to it with `toolscout model use`"
        )
        return CheckResult("embedder", ok=False, message=message)
    message = f"{embedder.model} works, {dimension} dimensions"
    if embedder.is_local or seconds * 1000 <= settings.query_embed_budget_ms:
        return CheckResult("embedder", ok=True, message=message)
    message += (
        f", but it took {seconds * 1000:.0f} ms for a query, and TOOLSCOUT_QUERY_EMBED_BUDGET_MS allows "
        f"{settings.query_embed_budget_ms} ms: a message that takes longer is searched by words alone"
    )
    return CheckResult("embedder", ok=True, message=message, is_warning=True)


async def _probe_embedder(embedder: Embedder) -> tuple[int, float]:
    """Return the dimension and the seconds for a query. The first query, which connects or loads, is not measured."""
    await embedder.embed_queries(["ping"])
    started = time.perf_counter()
    dimension: int = (await embedder.embed_queries(["pong"])).shape[1]
    return dimension, time.perf_counter() - started


async def _check_cloud(settings: Settings) -> list[CheckResult]:
    """Return whether the cloud answers, if there is one. Without it, its projects are searched by words alone."""
    cloud = make_cloud_client(settings, Metrics())
    if cloud is None:
        return []
    try:
        await cloud.check()
    except CloudFailed as error:
        return [CheckResult("cloud", ok=False, message=f"{settings.cloud_url}: {error.message}")]
    finally:
        await cloud.aclose()
    return [CheckResult("cloud", ok=True, message=f"{settings.cloud_url} answers")]


async def _check_registry(settings: Settings) -> list[CheckResult]:
    """Return whether the registry of MCP servers answers, if there is one. Nothing else depends on it."""
    registry = make_registry_client(settings, Metrics())
    if registry is None:
        return []
    try:
        await registry.check()
    except ToolscoutError as error:
        message = f"{settings.registry_url}: {error.message}"
        return [CheckResult("registry", ok=True, message=message, is_warning=True)]
    finally:
        await registry.aclose()
    return [CheckResult("registry", ok=True, message=f"{settings.registry_url} answers")]


async def _check_identity_provider(settings: Settings) -> list[CheckResult]:
    """Return whether the identity provider answers, if there is one. Without it, tokens are refused."""
    sso = make_single_sign_on(settings)
    if sso is None:
        return []
    try:
        state = await sso.provider.get_state()
    except IdentityProviderDown as error:
        return [CheckResult("identity", ok=False, message=f"identity provider: {error.reason}")]
    finally:
        await sso.provider.aclose()
    message = f"identity provider: reachable, {len(state.keys)} key{'' if len(state.keys) == 1 else 's'}"
    if settings.public_url is not None:
        return [CheckResult("identity", ok=True, message=message)]
    message += ", but TOOLSCOUT_PUBLIC_URL is not set: a token must have the audience of TOOLSCOUT_OIDC_AUDIENCE"
    return [CheckResult("identity", ok=True, message=message, is_warning=True)]


async def _check_languages(settings: Settings, url: str) -> list[CheckResult]:
    """Return a recommendation if many messages are in languages that the active model does not know."""
    active = await asyncio.to_thread(read_active_model, url)
    if active is None or not is_english_only(active.id):
        return []
    database = make_pool(settings, url, size=1)
    try:
        async with database.system_transaction() as session:
            not_english, total = await count_not_english(session)
    finally:
        await database.close()
    if total < _MIN_DISCOVERIES or not_english < _MIN_NOT_ENGLISH * total:
        return []
    message = (
        f"{not_english / total:.0%} of the last {total} messages are not English, and {active.id} knows English alone: "
        'use a multilingual endpoint, see "Other languages" in docs/guides/operations.md'
    )
    return [CheckResult("languages", ok=True, message=message)]
