"""Simulate how discovery learns: users live through messages, and their other messages are measured.

A user owns the tools of a set and really uses a few dozen of them. The messages that need one of these are split in
half: the user lives through the one half and never sends the other, which is measured before and after 10, 50 and 200
lived messages. If the answer has a right tool, the user reports its success; sometimes it is a wrong tool instead.
Messages that need no tool are measured, too: what was learnt must not make up tools for them.

All calls are those of the product: `discover()` and `give_feedback()`. Users and mistakes follow from fixed seeds.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.auth.permissions import Caller
from app.catalog.visibility import Scope
from app.container import Container
from app.discovery.discover import discover
from app.discovery.feedback import give_feedback
from app.evaluation.labelled_messages import LabelledMessage
from app.evaluation.run import DEFAULT_LIMIT, make_request
from app.evaluation.scores import Interval, paired_interval
from app.usage.priors import update_priors
from bench.relevance.index import IndexedSet, index_set
from bench.relevance.messages import Scores, score_answer
from bench.relevance.sets import BenchSet

STAGES = (10, 50, 200)
"""After how many lived messages the others are measured. A user with fewer messages sends them again."""
USERS = 6
TOOLS_PER_USER = 30
WRONG_SHARE = 0.1
"""How often the user reports success for a wrong tool."""
_MAX_WRONG_RANK = 3
_MAX_TOOLLESS = 60

# The users of a set share one catalogue: each of them begins without what the one before has left.
_FORGET = (
    "DELETE FROM tool_examples WHERE user_id = %(user_id)s",
    "DELETE FROM discovery_vectors WHERE user_id = %(user_id)s",
    "DELETE FROM tool_feedback WHERE user_id = %(user_id)s",
    "DELETE FROM tool_usage WHERE user_id = %(user_id)s",
    "UPDATE mcp_tool_embeddings SET prior = 0 WHERE user_id = %(user_id)s AND prior <> 0",
    "UPDATE users SET adaptation = '{}' WHERE id = %(user_id)s",
)
_COUNT_EXAMPLES = "SELECT count(*) FROM tool_examples WHERE user_id = %(user_id)s"


@dataclass(frozen=True)
class Life:
    """A user's messages."""

    lived: Sequence[LabelledMessage]
    other: Sequence[LabelledMessage]
    toolless: Sequence[LabelledMessage]


@dataclass(frozen=True)
class Measurement:
    scores: Sequence[Scores]
    """Of each other message."""
    empty: Sequence[bool]
    """Whether each message that needs no tool got none."""
    examples: int

    def __add__(self, following: "Measurement") -> "Measurement":
        return Measurement(
            [*self.scores, *following.scores],
            [*self.empty, *following.empty],
            self.examples + following.examples,
        )


@dataclass(frozen=True)
class Simulation:
    name: str
    users: int
    stages: dict[int, Measurement]
    """By the number of lived messages, over all users."""


def make_life(bench: BenchSet, seed: int) -> Life | None:
    """Choose the tools that a user uses, and split their messages; None if too few tools have several messages."""
    chooser = random.Random(seed)  # noqa: S311
    by_tool: defaultdict[str, list[LabelledMessage]] = defaultdict(list)
    for item in bench.items:
        for label in item.tools:
            by_tool[label].append(item)
    candidates = sorted(label for label, items in by_tool.items() if len(items) > 1)
    used = set(chooser.sample(candidates, min(TOOLS_PER_USER, len(candidates))))
    messages = [item for item in bench.items if used & set(item.tools)]
    if len(messages) < 2:
        return None
    chooser.shuffle(messages)
    toolless = [item for item in bench.items if not item.tools]
    return Life(messages[::2], messages[1::2], chooser.sample(toolless, min(_MAX_TOOLLESS, len(toolless))))


async def simulate(
    container: Container, bench: BenchSet, *, users: int = USERS, stages: Sequence[int] = STAGES, wrong: float
) -> Simulation:
    index = await index_set(container, bench)
    total: dict[int, Measurement] = {}
    lives = [life for seed in range(users) if (life := make_life(bench, seed)) is not None]
    for seed, life in enumerate(lives):
        for stage, measured in (await _live(container, index, life, stages, wrong, seed)).items():
            total[stage] = total[stage] + measured if stage in total else measured
    return Simulation(bench.name, len(lives), total)


def format_simulation(simulation: Simulation) -> str:
    before = simulation.stages[0]
    lines = [
        f"{simulation.name}: {simulation.users} users, {len(before.scores)} other messages, "
        f"{len(before.empty)} that need no tool",
        f"{'lived':>6}{'examples':>10}{'hit@1':>8}{'hit@8':>8}{'nDCG@10':>9}   "
        f"{'nDCG@10 against none lived':28}no tool: empty",
    ]
    for lived, measured in simulation.stages.items():
        interval = _compare(before, measured)
        difference = f"{interval.difference:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]" if lived else ""
        empty = f"{_mean(measured.empty):.3f}" if measured.empty else "–"
        values = [_mean([getattr(each, name) for each in measured.scores]) for name in ("hit_at_1", "hit_at_8")]
        lines.append(
            f"{lived:6}{measured.examples / max(simulation.users, 1):10.0f}{values[0]:8.3f}{values[1]:8.3f}"
            f"{_mean(_list_gains(measured)):9.3f}   {difference:28}{empty}"
        )
    return "\n".join(lines)


async def _live(
    container: Container, index: IndexedSet, life: Life, stages: Sequence[int], wrong: float, seed: int
) -> dict[int, Measurement]:
    """Live through the messages of a user, and measure the others before and at each stage."""
    chooser = random.Random(1_000 + seed)  # noqa: S311
    await _forget(container, index.caller)
    measured = {0: await _measure(container, index, life)}
    for number in range(1, max(stages) + 1):
        await _use(container, index, life.lived[(number - 1) % len(life.lived)], chooser, wrong)
        if number in stages:
            measured[number] = await _measure(container, index, life)
    return measured


async def _use(
    container: Container, index: IndexedSet, item: LabelledMessage, chooser: random.Random, wrong: float
) -> None:
    """Send a message, and report success for the right tools of the answer, or by mistake for a wrong one."""
    request = replace(make_request(item, limit=DEFAULT_LIMIT, project_id=None), dry_run=False)
    discovery = await discover(container.discoverer, index.caller, request)
    keys, relevant = [tool.definition.tool_id for tool in discovery.tools], _find_relevant(index, item)
    used, others = [key for key in keys if key in relevant], [key for key in keys if key not in relevant]
    if others and chooser.random() < wrong:
        used = [chooser.choice(others[:_MAX_WRONG_RANK])]
    scope = Scope(index.caller.require_user().id, container.model.id)
    for key in used:
        await give_feedback(container.discoverer, scope, discovery.id, key, "succeeded")


async def _measure(container: Container, index: IndexedSet, life: Life) -> Measurement:
    parameters = {"user_id": index.caller.require_user().id}
    async with container.database.transaction(parameters["user_id"]) as session:
        await update_priors(session, parameters["user_id"])
        [(examples,)] = await session.rows(_COUNT_EXAMPLES, parameters)
    found = [await _find(container, index, item) for item in life.other]
    scores = [score_answer(keys, _find_relevant(index, item)) for keys, item in zip(found, life.other, strict=True)]
    return Measurement(scores, [not await _find(container, index, item) for item in life.toolless], examples)


async def _find(container: Container, index: IndexedSet, item: LabelledMessage) -> list[str]:
    request = replace(make_request(item, limit=DEFAULT_LIMIT, project_id=None), dry_run=True)
    discovery = await discover(container.discoverer, index.caller, request)
    return [tool.definition.tool_id for tool in discovery.tools]


async def _forget(container: Container, caller: Caller) -> None:
    user_id = caller.require_user().id
    async with container.database.transaction(user_id) as session:
        for statement in _FORGET:
            await session.rows(statement, {"user_id": user_id})


def _find_relevant(index: IndexedSet, item: LabelledMessage) -> set[str]:
    return {index.keys.get(label, label) for label in item.tools}


def _compare(before: Measurement, after: Measurement) -> Interval:
    return paired_interval(_list_gains(before), _list_gains(after))


def _list_gains(measured: Measurement) -> list[float]:
    return [each.ndcg_at_10 for each in measured.scores]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
