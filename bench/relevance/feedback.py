"""What does feedback change? Half of a set's messages are asked and answered with success, the other half measured.

Successes go the way of `POST /feedback`, and are learnt from as the service does it; then the same messages are asked
again, so that whatever differs is the prior's doing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.catalog.visibility import Scope
from app.container import Container
from app.discovery.discover import Discovery, discover
from app.discovery.feedback import give_feedback
from app.evaluation.labelled import Labelled
from app.evaluation.run import DEFAULT_LIMIT, ask_of
from app.evaluation.scores import Interval, Measures, mean, measure, paired_interval
from app.usage.learning import update_priors
from app.usage.prior import PRIOR_MOST
from bench.relevance.index import Indexed, indexed
from bench.relevance.sets import BenchSet

_A_HAIR = 1e-6
"""Rows hold priors in single precision."""


@dataclass(frozen=True)
class Simulation:
    name: str
    successes: int
    measured: int
    without: Measures
    with_priors: Measures
    interval: Interval
    """Of nDCG@10, of what the priors add."""
    moved: int
    """Messages whose answer has another order."""
    largest_change: float
    """Of a tool's score, up or down."""

    @property
    def within_bounds(self) -> bool:
        return self.largest_change <= PRIOR_MOST + _A_HAIR


@dataclass(frozen=True)
class _Ranked:
    keys: Sequence[str]
    scores: dict[str, float]
    measures: Measures


async def simulated(container: Container, bench: BenchSet) -> Simulation:
    index = await indexed(container, bench)
    needing = [asked for asked in bench.asked if asked.tools]
    lived, measured = needing[::2], needing[1::2]
    before = [await _ranked(container, index, asked) for asked in measured]
    successes = sum([await _succeed(container, index, asked) for asked in lived])
    user_id = index.caller.require_user().id
    async with container.database.transaction(user_id) as session:
        await update_priors(session, user_id)
    after = [await _ranked(container, index, asked) for asked in measured]
    return Simulation(
        name=bench.name,
        successes=successes,
        measured=len(measured),
        without=_mean(before),
        with_priors=_mean(after),
        interval=paired_interval(_gains(before), _gains(after)),
        moved=sum(one.keys != other.keys for one, other in zip(before, after, strict=True)),
        largest_change=max(_change(one, other) for one, other in zip(before, after, strict=True)),
    )


def shown(simulation: Simulation) -> str:
    head = (
        f"{simulation.name}: {simulation.successes} successes of one half of the messages, "
        f"{simulation.measured} of the other half measured"
    )
    interval = simulation.interval
    return "\n".join(
        [
            head,
            f"{'':17}{'hit@1':>7}{'R@5':>7}{'R@10':>7}{'nDCG@10':>9}{'MRR':>7}",
            _line("without priors", simulation.without),
            _line("with priors", simulation.with_priors),
            f"nDCG@10 {interval.difference:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]; "
            f"{simulation.moved} answers in another order; largest change of a score "
            f"{simulation.largest_change:.4f}, {'within' if simulation.within_bounds else 'BEYOND'} {PRIOR_MOST:g}",
        ]
    )


async def _asked(container: Container, index: Indexed, asked: Labelled) -> Discovery:
    ask = await ask_of(container.discoverer, index.caller, asked, limit=DEFAULT_LIMIT, project_id=None)
    return await discover(container.discoverer, index.caller.require_user(), ask)


async def _succeed(container: Container, index: Indexed, asked: Labelled) -> int:
    """With every tool that is right, found or not: a user who knows it runs it anyway."""
    discovery = await _asked(container, index, asked)
    scope = Scope(index.caller.require_user().id, container.model.id)
    right = [index.keys[label] for label in asked.tools if label in index.keys]
    for key in right:
        await give_feedback(container.discoverer, scope, discovery.id, key, "succeeded")
    return len(right)


async def _ranked(container: Container, index: Indexed, asked: Labelled) -> _Ranked:
    found = (await _asked(container, index, asked)).tools
    keys = [tool.offer.tool_id for tool in found]
    relevant = {index.keys.get(label, label) for label in asked.tools}
    return _Ranked(keys, {tool.offer.tool_id: tool.score or 0.0 for tool in found}, measure(keys, relevant))


def _change(before: _Ranked, after: _Ranked) -> float:
    both = before.scores.keys() & after.scores.keys()
    return max((abs(after.scores[key] - before.scores[key]) for key in both), default=0.0)


def _mean(ranked: Sequence[_Ranked]) -> Measures:
    return mean([each.measures for each in ranked]) or Measures(0, 0, 0, 0, 0)


def _gains(ranked: Sequence[_Ranked]) -> list[float]:
    return [each.measures.ndcg_at_10 for each in ranked]


def _line(name: str, means: Measures) -> str:
    first = "".join(f"{value:7.3f}" for value in (means.hit_at_1, means.recall_at_5, means.recall_at_10))
    return f"{name:17}{first}{means.ndcg_at_10:9.3f}{means.reciprocal_rank:7.3f}"
