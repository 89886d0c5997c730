"""The command line: run the service, prepare its database, make keys, ask a question, find out what is wrong."""

import argparse
import asyncio
import signal
import socket
import sys
import textwrap
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import uvicorn
import uvloop
from pydantic import ValidationError

from app import __version__
from app.accounts.keys import NewKey, admin_key_exists, create_key
from app.accounts.users import ensure_user, get_user
from app.catalog.visibility import Scope
from app.database.engine import Database
from app.database.migrate import migrate
from app.demo.seed import DEMO_USER, finish_demo, seed_demo
from app.discovery.discover import DEFAULT_LIMIT, Ask, Discovery, discover
from app.doctor import examine
from app.errors import ConfigurationError, InvalidInput, ToolscoutError
from app.main import create_app
from app.search.query import search_text
from app.settings import Settings
from app.telemetry import configure_logging
from app.wiring import Container, open_container, owned_database, reachable_database

_GRACE_S = 8


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    try:
        settings = Settings()
        configure_logging(settings.log_level if options.command == "serve" else "WARNING")
        sys.exit(_run(options.deed(settings, options)))
    except ValidationError as error:
        sys.exit("toolscout: the settings are not valid:\n" + "\n".join(_wrong_settings(error)))
    except ToolscoutError as error:
        sys.exit(f"toolscout: {error.message}")
    except KeyboardInterrupt:
        sys.exit(130)


def _run(deed: Coroutine[Any, Any, int]) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(deed)


def _wrong_settings(error: ValidationError) -> list[str]:
    return [f"  {_environment_name(str(item['loc'][0]))}: {item['msg']}" for item in error.errors()]


def _environment_name(field: str) -> str:
    return field if field.isupper() else f"TOOLSCOUT_{field.upper()}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="toolscout", description="Finds, for each chat message, the tools that matter."
    )
    parser.add_argument("--version", action="version", version=f"toolscout {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="run the service (settings: see the README)")
    serve.set_defaults(deed=_serve)

    migration = commands.add_parser("migrate", help="bring the database's schema up to date")
    migration.add_argument(
        "--to", default="head", metavar="REVISION", help="a revision, `-1` or `base` (default: head)"
    )
    migration.set_defaults(deed=_migrate)

    key = commands.add_parser("key", help="API keys").add_subparsers(dest="key_command", required=True)
    creation = key.add_parser("create", help="make a key and print it, once")
    creation.add_argument("--kind", choices=["user", "service", "admin"], default="user", help="default: user")
    creation.add_argument("--user", metavar="ID", help="whom a user key acts for; made if need be")
    creation.add_argument("--name", help="a note on what the key is for")
    creation.add_argument("--days", type=_days, metavar="N", help="let it expire after N days")
    creation.set_defaults(deed=_create_key)

    question = commands.add_parser("discover", help="ask which tools a message needs")
    question.add_argument("message")
    question.add_argument("--user", default=DEMO_USER, metavar="ID", help=f"whose tools (default: {DEMO_USER})")
    question.add_argument("--limit", type=int, choices=range(1, 51), default=DEFAULT_LIMIT, metavar="1..50")
    question.add_argument("--strategy", choices=["hybrid", "semantic", "bm25"], default="hybrid")
    question.set_defaults(deed=_discover)

    doctor = commands.add_parser("doctor", help="check settings, database and embedder, and say what is wrong")
    doctor.set_defaults(deed=_doctor)
    return parser


def _days(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 36_500:
        raise argparse.ArgumentTypeError("a whole number of days from 1 on")
    return int(text)


async def _serve(settings: Settings, _options: argparse.Namespace) -> int:
    # before anything else: keys that are made and shown once must not be made for a service that cannot start
    with _listening(settings) as listener:
        async with owned_database(settings) as url, open_container(settings, url) as container:
            await _announce_keys(container)
            await _serve_until_stopped(container, listener)
    return 0


def _listening(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        place = f"{settings.host}:{settings.port}"
        raise ConfigurationError(
            f"cannot listen on {place} ({error.strerror}): set TOOLSCOUT_PORT to another"
        ) from error
    return listener


async def _serve_until_stopped(container: Container, listener: socket.socket) -> None:
    config = uvicorn.Config(
        create_app(container),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    # uvicorn raises the signal that stopped it once more when it is done, which must not end us half-closed
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, signal.SIG_IGN)
    host, port = listener.getsockname()[:2]
    greeting = f"\n  Toolscout answers at http://{host}:{port}   (API: http://{host}:{port}/docs, stop with Ctrl-C)\n"
    await _Server(config, greeting, container.draining).serve(sockets=[listener])


class _Server(uvicorn.Server):
    """Greets when the port is open, and not before; says when it begins to stop."""

    def __init__(self, config: uvicorn.Config, greeting: str, draining: asyncio.Event) -> None:
        super().__init__(config)
        self._greeting = greeting
        self._draining = draining

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            print(self._greeting, flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._draining.set()
        await super().shutdown(sockets)


async def _announce_keys(container: Container) -> None:
    """Each at the moment it is made: whatever happens next, nobody is locked out."""
    settings = container.settings
    if (admin_key := await _first_admin_key(container)) is not None:
        _say("The first admin key, shown this once:", f"  {admin_key}")
    if settings.wants_demo and (demo_key := await seed_demo(container)) is not None:
        _say("A demo user with tools on eight servers is being made. Its key, shown this once:", f"  {demo_key}")
        await finish_demo(container)
        _say("Ask for the tools that a message needs:", _curl(f"http://{settings.host}:{settings.port}", demo_key))
    _say(f"More keys: {sys.argv[0]} key create --help")


def _say(*lines: str) -> None:
    print("\n" + "\n\n".join(textwrap.indent(line, "  ") for line in lines), flush=True)


async def _first_admin_key(container: Container) -> str | None:
    if container.settings.admin_api_key is not None:
        return None
    async with container.database.system_transaction() as session:
        if await admin_key_exists(session):
            return None
        _, secret = await create_key(session, NewKey("admin", name="first"))
        return secret


def _curl(address: str, key: str) -> str:
    return (
        f"  curl -s {address}/discover -H 'Authorization: Bearer {key}' \\\n"
        "    -H 'Content-Type: application/json' \\\n"
        '    -d \'{"query": "do I need an umbrella in Salzburg this weekend?"}\''
    )


async def _migrate(settings: Settings, options: argparse.Namespace) -> int:
    async with reachable_database(settings) as url:
        production = settings.environment == "production"
        revision = await asyncio.to_thread(migrate, url, revision=options.to, production=production)
    print(f"the schema is at {revision}")
    return 0


async def _create_key(settings: Settings, options: argparse.Namespace) -> int:
    if (options.kind == "user") != (options.user is not None):
        raise InvalidInput("a user key needs --user; service and admin keys take none")
    expires_at = None if options.days is None else datetime.now(UTC) + timedelta(days=options.days)
    async with reachable_database(settings) as url:
        await asyncio.to_thread(migrate, url)
        database = Database(url, pool_size=1)
        try:
            async with database.system_transaction() as session:
                if options.user is not None:
                    await ensure_user(session, options.user)
                _, secret = await create_key(session, NewKey(options.kind, options.name, options.user, expires_at))
        finally:
            await database.close()
    print(secret)
    return 0


async def _discover(settings: Settings, options: argparse.Namespace) -> int:
    if not options.message.strip():
        raise InvalidInput("there is no text to search for")
    settings = settings.model_copy(update={"index_concurrency": 0})
    async with reachable_database(settings) as url, open_container(settings, url) as container:
        async with container.database.system_transaction() as session:
            user = await get_user(session, options.user)
        ask = Ask(
            text=search_text(options.message, None),
            scope=Scope(user.id, container.model.id),
            strategy=options.strategy,
            limit=options.limit,
            threshold=None,
            include_core_tools=True,
            max_tokens=None,
            keep=(),
        )
        _print_discovery(await discover(container.discoverer, user, ask))
    return 0


def _print_discovery(discovery: Discovery) -> None:
    for place, tool in enumerate(discovery.tools, start=1):
        score = "     " if tool.score is None else f"{tool.score:.3f}"
        name = ".".join(part for part in (tool.offer.server_name, tool.offer.name) if part)
        print(f"{place:3}  {score}  {name:40}  {tool.source}")
    if discovery.no_match:
        print("no tool fits this message")
    degraded = f", degraded: {discovery.degraded_reason}" if discovery.degraded_reason else ""
    print(
        f"{discovery.searched} tools searched ({discovery.strategy}{degraded}), "
        f"{discovery.tokens_selected} of {discovery.tokens_all} tokens"
    )


async def _doctor(settings: Settings, _options: argparse.Namespace) -> int:
    findings = await examine(settings)
    for finding in findings:
        print(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.subject:10}  {finding.message}")
    return 0 if all(finding.ok for finding in findings) else 1
