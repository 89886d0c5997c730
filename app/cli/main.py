"""The command line: run the service, prepare its database, make keys, connect servers, find and run tools."""

import argparse
import asyncio
import os
import sys
from collections.abc import Coroutine
from typing import Any

import uvloop
from pydantic import ValidationError

from app import __version__
from app.cli.calibration import add_calibration_command
from app.cli.evaluation import add_evaluation_commands
from app.cli.keys import add_key_commands
from app.cli.models import add_model_commands
from app.cli.selections import add_selection_commands
from app.cli.serve import serve
from app.cli.servers import add_server_commands
from app.cli.tools import add_tool_commands
from app.db.migrate import migrate
from app.doctor import check_installation
from app.errors import ToolscoutError
from app.local_postgres.database import connect_database
from app.observability.metrics import configure_logging
from app.settings import Settings, variable_of


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
    except BrokenPipeError:
        # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _run(deed: Coroutine[Any, Any, int]) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(deed)


def _wrong_settings(error: ValidationError) -> list[str]:
    return [f"  {_environment_name(str(item['loc'][0]))}: {item['msg']}" for item in error.errors()]


def _environment_name(field: str) -> str:
    return field if field.isupper() else variable_of(field)


class _Parser(argparse.ArgumentParser):
    """Refuses by itself what it does not know: the parser above it, to which that would be left, shows its own usage,
    in which nothing of the command is said."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="toolscout", description="Finds, for each chat message, the tools that matter.")
    parser.add_argument("--version", action="version", version=f"toolscout {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serving = commands.add_parser("serve", help="run the service (settings: see the README)")
    serving.set_defaults(deed=serve)

    migration = commands.add_parser("migrate", help="bring the database's schema up to date")
    migration.add_argument(
        "--to", default="head", metavar="REVISION", help="a revision, `-1` or `base` (default: head)"
    )
    migration.set_defaults(deed=_migrate)

    add_key_commands(commands)
    add_server_commands(commands)
    add_tool_commands(commands)
    add_evaluation_commands(commands)
    add_calibration_command(commands)
    add_selection_commands(commands)
    add_model_commands(commands)

    doctor = commands.add_parser("doctor", help="check settings, database and embedder, and say what is wrong")
    doctor.set_defaults(deed=_doctor)
    return parser


async def _migrate(settings: Settings, options: argparse.Namespace) -> int:
    async with connect_database(settings, create=True) as url:
        production = settings.environment == "production"
        revision = await asyncio.to_thread(migrate, url, revision=options.to, production=production)
    print(f"the schema is at {revision}")
    return 0


async def _doctor(settings: Settings, _options: argparse.Namespace) -> int:
    findings = await check_installation(settings)
    for finding in findings:
        print(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.subject:10}  {finding.message}")
    return 0 if all(finding.ok for finding in findings) else 1
