"""`toolscout doctor`."""

from app.cli.context import with_settings
from app.cli.group import make_group
from app.cli.output import print_lines, print_table
from app.doctor import CheckResult, check_installation
from app.observability.logging import set_log_level
from app.settings import Settings

commands = make_group()


@commands.command("doctor")
@with_settings
async def run_checks(settings: Settings) -> int:
    """Check the settings, the database and the embedder.

    Each check prints one line, which says what is wrong; `warn` marks what works, but not as well as it should. If the
    database lacks the extension, a role or a privilege, the SQL for a superuser follows, ready to be pasted into psql.
    The exit code is 1 if a check fails.
    """
    set_log_level("CRITICAL")  # the report tells each failure
    results = await check_installation(settings)
    print_table(
        ["", "check", "result"],
        [[_get_mark(result), result.subject, result.message] for result in results],
        [f"{_get_mark(result):4}  {result.subject:10}  {result.message}" for result in results],
    )
    if statements := [statement for result in results for statement in result.statements]:
        print("\nAs a superuser, run this in psql:\n")
        print_lines(dict.fromkeys(statements))
    return 0 if all(result.ok for result in results) else 1


def _get_mark(result: CheckResult) -> str:
    if not result.ok:
        return "FAIL"
    return "warn" if result.is_warning else "ok"
