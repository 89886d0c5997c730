"""`toolscout key create`, `list` and `revoke`, and `toolscout rotate-secrets`."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import typer
from pydantic import ValidationError

from app.auth import keys
from app.auth.keys import ApiKey, KeyKind, NewKey
from app.cli.context import ACTOR, confirm, find_project_id, open_database, read_all_pages, with_settings
from app.cli.group import make_group
from app.cli.output import print_table
from app.container import make_quotas
from app.db.engine import Database
from app.db.pagination import Page, PageRequest
from app.errors import InvalidInput, NotFound
from app.local_postgres.secret_key import make_sealer
from app.management.keys import create_key, revoke_key
from app.management.servers import reseal_credentials
from app.schemas.base import describe_errors
from app.schemas.keys import NewKeyBody
from app.settings import Settings

commands = make_group()
key_commands = make_group("Manage API keys.")
commands.add_typer(key_commands, name="key")


@key_commands.command("create")
@with_settings
async def create(
    settings: Settings,
    kind: Annotated[Literal["user", "service", "admin"], typer.Option("--kind", help="The kind of the key.")] = "user",
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="ID", help="The user that a user key acts for. Created if it does not exist."),
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(
            "--project", metavar="PROJECT", help="Restrict a user key to the tools of this project: its id or name."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="A note on what the key is for.")] = None,
    days: Annotated[
        int | None,
        typer.Option("--days", metavar="N", min=1, max=36_500, help="Let the key expire after this number of days."),
    ] = None,
) -> int:
    """Create an API key and print it.

    The key is shown only once: the database stores only its hash.
    """
    if (kind == "user") != (user is not None):
        raise InvalidInput("a user key needs --user; service and admin keys take none")
    expires_at = None if days is None else datetime.now(UTC) + timedelta(days=days)
    new_key = _validate_key(kind, name, user, project, expires_at)
    async with open_database(settings) as database:
        if user is not None:
            new_key = replace(new_key, project_id=await find_project_id(database, user, project))
        _, secret = await create_key(database, new_key, make_quotas(settings), actor=ACTOR, create_user=True)
    print(secret)
    return 0


def _validate_key(
    kind: KeyKind, name: str | None, user_id: str | None, project_id: str | None, expires_at: datetime | None
) -> NewKey:
    """Apply the same rules as the REST route."""
    try:
        body = NewKeyBody(kind=kind, name=name, user_id=user_id, project_id=project_id, expires_at=expires_at)
    except ValidationError as error:
        raise InvalidInput("; ".join(describe_errors(error))) from None
    return NewKey(**body.model_dump())


@key_commands.command("list")
@with_settings
async def list_keys(
    settings: Settings,
    user: Annotated[
        str | None, typer.Option("--user", metavar="ID", help="List only the keys of this user.", show_default=False)
    ] = None,
) -> int:
    """List API keys by their prefixes, oldest first. The keys themselves are not stored."""
    async with open_database(settings) as database:
        found = [key for key in await _read_keys(database) if user is None or key.user_id == user]
    if not found:
        print("no keys yet; to create one, see `toolscout key create --help`")
        return 0
    rows = [
        (
            f"{key.prefix}…",
            key.kind,
            key.user_id or "",
            _describe_state(key),
            _format_date(key.last_used_at),
            key.name or "",
            key.id,
        )
        for key in found
    ]
    print_table(
        ["key", "kind", "user", "state", "last used", "name", "id"],
        rows,
        [
            f"{key:20}  {kind:7}  {owner:24}  {state:18}  {used:10}  {key_id}  {name}".rstrip()
            for key, kind, owner, state, used, name, key_id in rows
        ],
    )
    return 0


async def _read_keys(database: Database) -> list[ApiKey]:
    async def read_page(request: PageRequest) -> Page[ApiKey]:
        async with database.system_transaction() as session:
            return await keys.list_keys(session, request)

    return sorted(await read_all_pages(read_page), key=lambda key: key.created_at)


def _describe_state(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is None:
        return "active"
    return f"{'expired' if key.expires_at <= datetime.now(UTC) else 'until'} {_format_date(key.expires_at)}"


def _format_date(at: datetime | None) -> str:
    return "never" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d")


@key_commands.command("revoke")
@with_settings
async def revoke(
    settings: Settings,
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="The id or the prefix of the key, as `toolscout key list` shows them.")
    ],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask on a terminal.")] = False,
) -> int:
    """Revoke an API key.

    A running service rejects the next request with it.
    """
    async with open_database(settings) as database:
        chosen = _find_key(await _read_keys(database), key)
        whose = f" of {chosen.user_id}" if chosen.user_id else ""
        confirm(f"revoke the {chosen.kind} key {chosen.prefix}…{whose}?", yes=yes, without_terminal=True)
        await revoke_key(database, chosen.id, caller_key_id=None, actor=ACTOR)
    print(f"{chosen.prefix}…: revoked")
    return 0


def _find_key(listed: list[ApiKey], text: str) -> ApiKey:
    """The errors do not repeat the text, which may be a key."""
    found = [key for key in listed if text.removesuffix("…") in (key.id, key.prefix)]
    if len(found) > 1:
        raise InvalidInput("several keys have this prefix: give the id of the one to revoke")
    if not found:
        raise NotFound("there is no such key: give the id or the prefix that `toolscout key list` shows")
    return found[0]


@commands.command("rotate-secrets")
@with_settings
async def rotate_secrets(settings: Settings) -> int:
    """Encrypt stored credentials with the current key.

    Run it with the new key in TOOLSCOUT_SECRET_KEY and the previous ones in TOOLSCOUT_OLD_SECRET_KEYS. Afterwards the
    previous keys can be removed from the settings.
    """
    if not settings.former_secret_keys:
        raise InvalidInput(
            "there is nothing to rotate from: TOOLSCOUT_OLD_SECRET_KEYS is empty; "
            "run this command with the settings of the service"
        )
    async with open_database(settings) as database:
        count, total = await reseal_credentials(database, make_sealer(settings), actor=ACTOR)
    print(f"{count} of {total} stored credentials were re-encrypted; all can be read with TOOLSCOUT_SECRET_KEY alone")
    return 0
