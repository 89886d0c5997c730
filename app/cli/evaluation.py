"""`toolscout eval`: how well labelled messages are answered, what was missed and why, and what would help."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from app.api.evaluation import render_evaluation
from app.auth.permissions import Caller
from app.cli.context import add_user_option, open_for_user
from app.cli.progress import ProgressBar
from app.cli.tools import printable
from app.errors import InvalidInput
from app.evaluation.evaluate import EvalOptions, Evaluation, Miss, NotFirst, evaluate
from app.evaluation.labelled import Labelled, read_labelled
from app.evaluation.lint import Suggestions, lint_descriptions
from app.evaluation.run import DEFAULT_LIMIT
from app.evaluation.summary import Summary
from app.settings import Settings

_MESSAGE_SHOWN = 60
_NOT_FIRST_SHOWN = 5


def add_evaluation_commands(commands: Any) -> None:
    evaluation = commands.add_parser("eval", help="how well labelled messages find their tools, and why not better")
    evaluation.add_argument(
        "file",
        nargs="?",
        type=Path,
        help='JSON Lines: {"message": "…", "tools": ["SERVER.TOOL", …]}; [] where none fits',
    )
    evaluation.add_argument("--limit", type=int, choices=range(1, 51), default=DEFAULT_LIMIT, metavar="1..50")
    evaluation.add_argument("--project", metavar="ID", help="only what this project sees")
    evaluation.add_argument("--suggest", action="store_true", help="tools that read alike, or say too little")
    evaluation.add_argument("--json", action="store_true", help="the answer of POST /eval, in place of tables")
    add_user_option(evaluation)
    evaluation.set_defaults(deed=_eval)


async def _eval(settings: Settings, options: argparse.Namespace) -> int:
    items = _items(options)
    async with open_for_user(settings, options.user) as (container, user):
        caller, discoverer = Caller("user", "cli", user), container.discoverer
        telling = Telling()
        evaluation = await evaluate(
            discoverer, caller, items, EvalOptions(options.limit, options.project), telling.tell
        )
        suggestions = None
        if options.suggest:
            suggestions = await lint_descriptions(discoverer, caller, project_id=options.project, told=telling.tell)
        telling.end()
    if options.json:
        print(
            orjson.dumps(render_evaluation(evaluation, suggestions).model_dump(), option=orjson.OPT_INDENT_2).decode()
        )
        return 0
    _print(evaluation, suggestions)
    return 0


def _items(options: argparse.Namespace) -> list[Labelled]:
    if options.file is None and not options.suggest:
        raise InvalidInput("give a file of labelled messages, or --suggest")
    return [] if options.file is None else read_items(options.file)


def read_items(file: Path) -> list[Labelled]:
    try:
        items = read_labelled(file.read_bytes())
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from error
    if not items:
        raise InvalidInput(f"{file} holds no messages")
    return items


class Telling:
    """One bar for each thing that takes long."""

    def __init__(self) -> None:
        self._what = ""
        self._bar = ProgressBar("")

    def tell(self, what: str, done: int, total: int) -> None:
        if what != self._what:
            self.end()
            self._what, self._bar = what, ProgressBar(what)
        self._bar.show(done, total, "")

    def end(self) -> None:
        self._bar.end()


def _print(evaluation: Evaluation, suggestions: Suggestions | None) -> None:
    if evaluation.answers:
        wrong = (*_unknown(evaluation), *_misses(evaluation.misses), *_not_first(evaluation.not_first))
        for line in (*_table(evaluation.summary), *wrong):
            print(printable(line))
    if suggestions is not None:
        for line in _suggested(suggestions):
            print(printable(line))


def _table(summary: Summary) -> list[str]:
    means = summary.measures
    lines = [f"{summary.messages} messages"]
    if means is not None:
        lines += [
            f"{'hit@1':>8}{'R@5':>8}{'R@10':>8}{'nDCG@10':>9}{'MRR':>8}",
            f"{means.hit_at_1:8.3f}{means.recall_at_5:8.3f}{means.recall_at_10:8.3f}{means.ndcg_at_10:9.3f}"
            f"{means.reciprocal_rank:8.3f}",
            f"{summary.lost:.1%} of those that need a tool were told that nothing fits",
            f"median: {summary.median_tokens:.0f} tokens an answer, {summary.median_saved_percent:.1f} % saved",
        ]
    if summary.abstained is not None:
        lines.append(f"{summary.abstained:.1%} of those that need none got none")
    if summary.degraded:
        lines.append(f"{summary.degraded} answers were degraded")
    return lines


def _unknown(evaluation: Evaluation) -> list[str]:
    labels = [f"  {each.asked.id}: {each.label}" for each in evaluation.unknown]
    return ["", "no such tool, so counted as not found:", *labels] if labels else []


def _misses(misses: Sequence[Miss]) -> list[str]:
    lines = [f"  {miss.asked.id}: {_short(miss.asked.text)}\n      {miss.tool}: {_reason(miss)}" for miss in misses]
    return ["", "not among the first five:", *lines] if lines else []


def _not_first(found: Sequence[NotFirst]) -> list[str]:
    lines = [
        f"  {each.asked.id}: {_short(each.asked.text)}\n      {each.tool}: at place {each.place}, behind {each.first}"
        for each in found[:_NOT_FIRST_SHOWN]
    ]
    more = [f"  and {len(found) - len(lines)} more: --json lists them all"] if len(found) > len(lines) else []
    return ["", f"{len(found)} found, but not at the first place:", *lines, *more] if found else []


def _reason(miss: Miss) -> str:
    return "" if miss.reason is None else miss.reason.message


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MESSAGE_SHOWN else f"{line[: _MESSAGE_SHOWN - 1]}…"


def _suggested(suggestions: Suggestions) -> list[str]:
    pairs = [
        f"  {pair.first.called}  {pair.second.called}  by {' and '.join(pair.by)}"
        f" ({'no vector yet' if pair.cosine is None else f'cosine {pair.cosine:.3f}'},"
        f" {pair.shared_words:.0%} of their words are the same)"
        for pair in suggestions.pairs
    ]
    poor = [f"  {each.tool.called}: {', '.join(each.problems).replace('_', ' ')}" for each in suggestions.poor]
    return [
        f"{suggestions.tools} tools",
        "",
        "hard to tell apart:" if pairs else "no two tools are hard to tell apart",
        *pairs,
        "",
        "hard to find:" if poor else "no tool is too poorly described to be found",
        *poor,
    ]
