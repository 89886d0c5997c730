"""`docs/reference/cli.md`: every command with its arguments and options, from the tree of click commands."""

from collections.abc import Iterator

import click

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


def render_page(program: click.Command) -> str:
    context = click.Context(program, info_name="toolscout")
    return "\n".join([_INTRODUCTION, *_render_commands(program, context)])


def list_commands(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """The command itself, then the commands below it, in the order of its help."""
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                yield from list_commands(child, click.Context(child, info_name=name, parent=context))


def _render_commands(program: click.Command, context: click.Context) -> Iterator[str]:
    for command, at in list_commands(program, context):
        rows = [_render_parameter(parameter, at) for parameter in command.params if parameter.name not in _IGNORED]
        if isinstance(command, click.Group) and not rows:
            continue
        usage = " ".join([at.command_path, *command.collect_usage_pieces(at)])
        table = f"\n{render_table(('', 'meaning'), rows)}" if rows else ""
        text = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
        yield f"## `{at.command_path}`\n\n{text}\n\n```sh\n{usage}\n```\n{table}"


def _render_parameter(parameter: click.Parameter, context: click.Context) -> tuple[str, str]:
    if isinstance(parameter, click.Option):
        names, meaning = parameter.get_help_record(context) or (", ".join(parameter.opts), "")
        return f"`{names}`", _clean(meaning)
    name = parameter.human_readable_name
    return f"`{name}`", _clean(getattr(parameter, "help", None) or "")


def _clean(text: str) -> str:
    return " ".join(text.replace("[default:", "(default:").replace("]", ")" if "[default:" in text else "]").split())
