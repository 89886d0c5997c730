"""`toolscout eval`."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

import orjson
import typer

from app.auth.permissions import Caller
from app.cli.context import ProjectOption, UserOption, find_project_id, open_for_user, with_settings
from app.cli.group import make_group
from app.cli.output import print_lines
from app.cli.progress import ProgressBar
from app.demo.seed import DEMO_USER
from app.errors import InvalidInput
from app.evaluation.evaluate import EvalOptions, Evaluation, Miss, NotFirst, evaluate
from app.evaluation.labelled_messages import LabelledMessage, parse_labelled_messages
from app.evaluation.lint import Suggestions, lint_descriptions
from app.evaluation.lint_rules import DescribedTool
from app.evaluation.run import DEFAULT_LIMIT
from app.evaluation.summary import Summary
from app.schemas.evaluation import render_evaluation
from app.settings import Settings

_MAX_MESSAGE_LENGTH = 60
_MAX_NOT_FIRST = 5

commands = make_group()


@commands.command("eval")
@with_settings
async def evaluate_messages(
    settings: Settings,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help='Labelled messages as JSON Lines: {"message": "…", "tools": ["SERVER.TOOL"]}. '
            "An empty list of tools means that no tool fits.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=50, help="The maximum number of tools for each message.")
    ] = DEFAULT_LIMIT,
    project: ProjectOption = None,
    *,
    suggest: Annotated[
        bool,
        typer.Option("--suggest", help="Report tools that are hard to tell apart or too poorly described to be found."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the response of POST /eval instead of tables.")] = False,
    user: UserOption = DEMO_USER,
) -> int:
    """Measure how well labelled messages find their tools.

    Reports the scores, the tools that were missed and why.
    """
    if file is None and not suggest:
        raise InvalidInput("give a file of labelled messages, or --suggest")
    items = [] if file is None else read_items(file)
    async with open_for_user(settings, user) as (container, owner):
        caller, discoverer = Caller("user", "cli", owner), container.discoverer
        project_id = await find_project_id(container.database, owner.id, project)
        suggestions = None
        with EvaluationProgress() as progress:
            evaluation = await evaluate(discoverer, caller, items, EvalOptions(limit, project_id), progress.report)
            if suggest:
                suggestions = await lint_descriptions(
                    discoverer, caller, project_id=project_id, on_progress=progress.report
                )
    if json:
        response = render_evaluation(evaluation, suggestions).model_dump()
        print(orjson.dumps(response, option=orjson.OPT_INDENT_2).decode())
    else:
        _print_evaluation(evaluation)
        if suggestions is not None:
            print_lines(_format_suggestions(suggestions, ToolLinks(settings, user)))
    return 0


def read_items(file: Path) -> list[LabelledMessage]:
    try:
        items = parse_labelled_messages(file.read_bytes())
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from error
    if not items:
        raise InvalidInput(f"{file} holds no messages")
    return items


class EvaluationProgress:
    """Shows one progress bar for each step of an evaluation."""

    def __init__(self) -> None:
        self._step = ""
        self._bar = ProgressBar("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.end()

    def report(self, step: str, done: int, total: int) -> None:
        if step != self._step:
            self._bar.end()
            self._step, self._bar = step, ProgressBar(step)
        self._bar.show(done, total, "")


def _print_evaluation(evaluation: Evaluation) -> None:
    if evaluation.answers:
        print_lines(_format_summary(evaluation.summary))
        print_lines(_format_unknown(evaluation))
        print_lines(_format_misses(evaluation.misses))
        print_lines(_format_not_first(evaluation.not_first))


def _format_summary(summary: Summary) -> list[str]:
    means = summary.measures
    lines = [f"{summary.messages} messages"]
    if means is not None:
        lines += [
            f"{'hit@1':>8}{'R@5':>8}{'R@10':>8}{'nDCG@10':>9}{'MRR':>8}",
            f"{means.hit_at_1:8.3f}{means.recall_at_5:8.3f}{means.recall_at_10:8.3f}{means.ndcg_at_10:9.3f}"
            f"{means.reciprocal_rank:8.3f}",
            f"{summary.lost:.1%} of the messages that need a tool got no match",
            f"{summary.mean_tools:.1f} tools in a response on average",
            f"median: {summary.median_tokens:.0f} tokens per response, {summary.median_saved_percent:.1f} % saved",
        ]
    if summary.abstained is not None:
        lines += [
            f"{summary.abstained:.1%} of the messages that need no tool got none; "
            f"on average they got {summary.mean_unneeded_tools:.1f}",
        ]
    lines.append(f"{summary.low_confidence:.1%} of the responses have low confidence")
    if summary.degraded:
        lines.append(f"{summary.degraded} responses were degraded")
    return lines


def _format_unknown(evaluation: Evaluation) -> list[str]:
    labels = [f"  {unknown.item.id}: {unknown.label}" for unknown in evaluation.unknown]
    return ["", "no such tool, so counted as not found:", *labels] if labels else []


def _format_misses(misses: Sequence[Miss]) -> list[str]:
    lines = [
        f"  {miss.item.id}: {_shorten(miss.item.text)}\n"
        f"      {miss.tool}: {'' if miss.reason is None else miss.reason.message}"
        for miss in misses
    ]
    return ["", "not among the first five:", *lines] if lines else []


def _format_not_first(found: Sequence[NotFirst]) -> list[str]:
    lines = [
        f"  {each.item.id}: {_shorten(each.item.text)}\n      {each.tool}: at rank {each.rank}, behind {each.first}"
        for each in found[:_MAX_NOT_FIRST]
    ]
    more = [f"  and {len(found) - len(lines)} more: --json lists them all"] if len(found) > len(lines) else []
    return ["", f"{len(found)} found, but not ranked first:", *lines, *more] if found else []


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_MESSAGE_LENGTH else f"{line[: _MAX_MESSAGE_LENGTH - 1]}…"


@dataclass(frozen=True)
class ToolLinks:
    """Where a person writes a better description: on the command line, or in the console."""

    settings: Settings
    user_id: str

    def edit_command(self, tool: DescribedTool) -> str:
        user_option = "" if self.user_id == DEMO_USER else f" --user {shlex.quote(self.user_id)}"
        return f"toolscout tool edit {shlex.quote(tool.qualified_name)}{user_option} --description '…'"

    def console_url(self, tool: DescribedTool) -> str:
        return f"{self.settings.base_url or ''}/console/tools/{tool.tool_key}#texts"


def _format_suggestions(suggestions: Suggestions, links: ToolLinks) -> list[str]:
    pairs = [
        f"  {pair.first.qualified_name}  {pair.second.qualified_name}  by {' and '.join(pair.by)}"
        f" ({'no vector yet' if pair.cosine is None else f'cosine {pair.cosine:.3f}'},"
        f" {pair.shared_words:.0%} of their words are the same)\n"
        f"      {links.edit_command(pair.first)}\n      {links.edit_command(pair.second)}"
        for pair in suggestions.pairs
    ]
    poor = [
        f"  {each.tool.qualified_name}: {', '.join(each.problems).replace('_', ' ')}\n"
        f"      {links.edit_command(each.tool)}\n      {links.console_url(each.tool)}"
        for each in suggestions.poor
    ]
    return [
        f"{suggestions.tools} tools",
        "",
        "hard to tell apart:" if pairs else "no two tools are hard to tell apart",
        *pairs,
        "",
        "hard to find:" if poor else "no tool is too poorly described to be found",
        *poor,
    ]
