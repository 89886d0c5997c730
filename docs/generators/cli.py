"""`docs/reference/cli.md`: every command with its arguments and options, from the tree of typer commands."""

import re
from collections.abc import Iterator

from typer import Context
from typer.core import TyperCommand, TyperGroup

from docs.generators.markdown import render_table

_INTRODUCTION = """# Command line reference

Every command (`make docs` writes this page; `toolscout COMMAND --help` shows the same). In a checkout the program is
`.venv/bin/toolscout`.

Commands read the same [settings](settings.md) as the service and work while it runs. Without `DATABASE_URL` they use
the embedded Postgres in `TOOLSCOUT_DATA_DIR`, relative to the working directory; where there is no data, all but
`serve` and `migrate` name that directory and exit. A command that fails exits with 1 and says why on standard error;
wrong usage exits with 2.
"""

_IGNORED = frozenset({"help", "install_completion", "show_completion"})
_NOTE = re.compile(r"(^|\s)\s*\[([^\[\]]*)\]$")
"""A default or a range at the end of a help text, which stands in brackets."""


def render_page(program: TyperGroup) -> str:
    context = Context(program, info_name="toolscout")
    return "\n".join([_INTRODUCTION, *(_render_command(*command) for command in list_commands(program, context))])


def list_commands(
    command: TyperCommand | TyperGroup, context: Context
) -> Iterator[tuple[TyperCommand | TyperGroup, Context]]:
    """The command itself, then those below it, in the order of its help; of groups, only the program itself."""
    if isinstance(command, TyperCommand) or context.parent is None:
        yield command, context
    if isinstance(command, TyperGroup):
        for name in command.list_commands(context):
            # not `get_command`: a command may be loaded when it is resolved
            _, child, _ = command.resolve_command(context, [name])
            if isinstance(child, TyperCommand | TyperGroup) and not child.hidden:
                yield from list_commands(child, Context(child, info_name=name, parent=context))


def _render_command(command: TyperCommand | TyperGroup, context: Context) -> str:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    description = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
    records = [parameter.get_help_record(context) for parameter in command.params if parameter.name not in _IGNORED]
    rows = [(f"`{names}`", _NOTE.sub(r"\1(\2)", meaning)) for names, meaning in filter(None, records)]
    table = f"\n{render_table(('', 'meaning'), rows)}" if rows else ""
    return f"## `{context.command_path}`\n\n{description}\n\n```sh\n{usage}\n```\n{table}"
