"""`toolscout calibrate`."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from app.cli.context import ACTOR, load_user, open_with_url, with_settings
from app.cli.evaluation import EvaluationProgress, read_items
from app.cli.group import make_group
from app.container import Container
from app.demo.seed import DEMO_USER, load_catalogue
from app.discovery.inline.documents import InlineTool
from app.embeddings.calibration import Calibration, UserCalibration
from app.errors import InvalidInput
from app.evaluation.calibrate import (
    CalibrationResult,
    calibrate,
    index_tools,
    load_shipped_labelled,
    load_shipped_messages,
    load_user_tools,
)
from app.evaluation.fit import ErrorRates
from app.evaluation.labelled_messages import LabelledMessage
from app.local_postgres.database import owner_connection
from app.management.models import store_calibration, store_user_calibration
from app.search.in_memory import TenantIndex
from app.settings import Settings
from app.text.strict_json import Json

_MIN_MESSAGES = 50
_MIN_USER_MESSAGES = 10
"""Fewer than for all users: the calibration of a user starts from the model's, which few messages change little."""
_APPLIES = "running services apply it within a second"

commands = make_group()


@commands.command("calibrate")
@with_settings
async def calibrate_model(
    settings: Settings,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="Labelled messages about the user's tools, in the format of `toolscout eval`. Without a file: the "
            "built-in messages about the demo tools.",
        ),
    ] = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the result without storing it.")] = False,
    reset: Annotated[
        bool, typer.Option("--reset", help="Restore the model's own calibration: of the user, or of all users.")
    ] = False,
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="ID", help="Calibrate for this user alone; the messages are about its tools."),
    ] = None,
    for_all: Annotated[
        bool, typer.Option("--for-all", help="Calibrate for all users, with the messages and tools of one user.")
    ] = False,
) -> int:
    """Calibrate the no-match threshold for the active model, or for one user.

    The threshold decides when no tool fits a message. Without a file it is calibrated for all users, with a file for
    the user whose tools the messages are about, unless --for-all is given.
    """
    if reset and (file is not None or dry_run):
        raise InvalidInput("--reset takes neither a FILE nor --dry-run: it restores a calibration at once")
    if user is not None and file is None and not reset:
        raise InvalidInput("--user needs a FILE with labelled messages about the user's tools")
    for_user = not for_all and (user is not None or file is not None)
    items = load_shipped_labelled() if file is None else read_items(file)
    if not dry_run and not reset:
        _check_enough(items, _MIN_USER_MESSAGES if for_user else _MIN_MESSAGES)
    async with open_with_url(settings) as (container, url):
        if reset:
            await _reset(container, url, user if for_user else None)
            return 0
        owner = user or DEMO_USER
        tools = await _load_tools(container, None if file is None else owner)
        with EvaluationProgress() as progress:
            fit = await calibrate(
                container.searcher, tools, items, load_shipped_messages(), progress.report, for_user=for_user
            )
        _print_fit(fit)
        if dry_run:
            print("nothing was stored")
        elif fit.own is not None:
            await _store_for_user(container, owner, fit.own)
            print(f"stored for the user {owner} with {container.model.id}; {_APPLIES}")
        else:
            await _store(container, url, fit.calibration)
            print(f"stored with {container.model.id}; {_APPLIES}")
    return 0


async def _reset(container: Container, url: str, user: str | None) -> None:
    if user is not None:
        await load_user(container.database, user)
        await _store_for_user(container, user, None)
        print(f"the user {user} is back to the calibration of all users; {_APPLIES}")
    else:
        await _store(container, url, None)
        print(f"{container.model.id} is back to the calibration that ships with it; {_APPLIES}")


async def _store_for_user(container: Container, user_id: str, own: UserCalibration | None) -> None:
    await store_user_calibration(container.database, user_id, own, actor=ACTOR)


def _check_enough(items: Sequence[LabelledMessage], minimum: int) -> None:
    """Refuse a small sample: a few messages fit any threshold."""
    count = sum(bool(item.tools) for item in items)
    if count < minimum:
        raise InvalidInput(
            f"{count} messages that need a tool are too few to calibrate on: give at least {minimum}, "
            "or see what they would change with --dry-run"
        )


async def _load_tools(container: Container, user_id: str | None) -> TenantIndex:
    """Load the tools of the user, or those of the demo."""
    if user_id is None:
        return await index_tools(container.inline_searcher, _demo_tools())
    return await load_user_tools(container.searcher, await load_user(container.database, user_id))


def _demo_tools() -> list[InlineTool]:
    return [_make_tool(server["name"], tool) for server in load_catalogue() for tool in server["tools"]]


def _make_tool(server: str, tool: Json) -> InlineTool:
    key = f"{server}/{tool['name']}"
    return InlineTool(key, tool["name"], server, tool["description"], tool["inputSchema"], tool.get("title"))


async def _store(container: Container, url: str, calibration: Calibration | None) -> None:
    owner = partial(owner_connection, url)
    await store_calibration(container.database, owner, container.model.id, calibration, actor=ACTOR)


def _print_fit(fit: CalibrationResult) -> None:
    if fit.skipped:
        print(f"skipped, because the tools in their labels do not exist: {', '.join(fit.skipped)}")
    print(f"{fit.answerable} messages that need one of {fit.tools} tools, {fit.unanswerable} that need none")
    print(f"{'':8}{'lost':>8}{'refused':>9}")
    print(_format_rates("before", fit.before))
    print(_format_rates("after", fit.after))
    found = fit.calibration
    print(
        f"unrelated {found.unrelated:g}, span {found.span:g}, threshold {found.threshold:g}, "
        f"low from {found.min_low:.1%}, high from {found.min_high:.1%}, temperature {found.temperature:g}"
    )


def _format_rates(name: str, rates: ErrorRates) -> str:
    return f"{name:8}{rates.lost:8.1%}{rates.refused:9.1%}"
