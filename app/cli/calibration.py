"""`toolscout calibrate`: when does nothing fit? Fitted for the active model, to our messages or to one's own."""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app import audit
from app.auth.users import get_user
from app.cli.context import ACTOR, add_user_option, open_with_url
from app.cli.evaluation import Telling, read_items
from app.container import Container, store_model_calibration
from app.demo.seed import load_catalogue
from app.discovery.inline.documents import SentTool
from app.embeddings.calibration import Calibration
from app.errors import InvalidInput
from app.evaluation.calibrate import (
    Fit,
    calibrate,
    shipped_labelled,
    shipped_messages,
    tools_in_memory,
    tools_of_user,
)
from app.evaluation.fit import ErrorRates
from app.evaluation.labelled import Labelled
from app.search.in_memory import TenantIndex
from app.settings import Settings
from app.text.strict_json import Json

_ENOUGH = 50
_NOTICED = "services that are running notice it within a second"


def add_calibration_command(commands: Any) -> None:
    calibration = commands.add_parser("calibrate", help="fit the judgement whether any tool fits to the active model")
    calibration.add_argument(
        "file",
        nargs="?",
        type=Path,
        help="labelled messages about the user's own tools, as of `eval` (default: ours, about the demo's)",
    )
    calibration.add_argument("--dry-run", action="store_true", help="show what it would change, and store nothing")
    calibration.add_argument("--reset", action="store_true", help="back to what ships with the model")
    add_user_option(calibration)
    calibration.set_defaults(deed=_calibrate)


async def _calibrate(settings: Settings, options: argparse.Namespace) -> int:
    items = shipped_labelled() if options.file is None else read_items(options.file)
    if not options.dry_run:
        _check_enough(items)
    async with open_with_url(settings) as (container, url):
        if options.reset:
            await _keep(container, url, None)
            print(f"{container.model.id} is back to what ships with it; {_NOTICED}")
            return 0
        tools = await _tools(container, options)
        telling = Telling()
        fit = await calibrate(container.inline_searcher, tools, items, shipped_messages(), telling.tell)
        telling.end()
        _print(fit)
        if options.dry_run:
            print("nothing was stored")
        else:
            await _keep(container, url, fit.calibration)
            print(f"stored with {container.model.id}; {_NOTICED}")
    return 0


def _check_enough(items: Sequence[Labelled]) -> None:
    """A few would fit anything, and everybody's search goes by it."""
    needing = sum(bool(item.tools) for item in items)
    if needing < _ENOUGH:
        raise InvalidInput(
            f"{needing} messages that need a tool are too few to fit to: give at least {_ENOUGH}, "
            "or look at what they would change with --dry-run"
        )


async def _tools(container: Container, options: argparse.Namespace) -> TenantIndex:
    if options.file is None:
        return await tools_in_memory(container.inline_searcher, _demo_tools())
    async with container.database.system_transaction() as session:
        user = await get_user(session, options.user)
    return await tools_of_user(container.inline_searcher, user)


def _demo_tools() -> list[SentTool]:
    return [_sent(server["name"], tool) for server in load_catalogue() for tool in server["tools"]]


def _sent(server: str, tool: Json) -> SentTool:
    key = f"{server}/{tool['name']}"
    return SentTool(key, tool["name"], server, tool["description"], tool["inputSchema"], tool.get("title"))


async def _keep(container: Container, url: str, calibration: Calibration | None) -> None:
    await asyncio.to_thread(store_model_calibration, url, container.model.id, calibration)
    async with container.database.system_transaction() as session:
        await audit.record(session, None, ACTOR, "model.calibrate", container.model.id)


def _print(fit: Fit) -> None:
    if fit.skipped:
        print(f"left out, since the tools that they name are not there: {', '.join(fit.skipped)}")
    print(f"{fit.answerable} messages that need one of {fit.tools} tools, {fit.unanswerable} that need none")
    print(f"{'':8}{'lost':>8}{'refused':>9}")
    print(_line("before", fit.before))
    print(_line("after", fit.after))
    found = fit.calibration
    print(
        f"unrelated {found.unrelated:g}, span {found.span:g}, threshold {found.threshold:g}, "
        f"weight {found.weight:g}, cut {found.cut:g}"
    )


def _line(name: str, shares: ErrorRates) -> str:
    return f"{name:8}{shares.lost:8.1%}{shares.refused:9.1%}"
