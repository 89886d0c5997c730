"""Simulate feedback: half of a set's messages report success, and the other half is measured.

Successes are recorded as `POST /feedback` does, and the priors are updated as the service does. The same messages are
measured before and after, so that every difference comes from the priors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.catalog.visibility import Scope
from app.container import Container
from app.discovery.discover import discover
from app.discovery.feedback import give_feedback
from app.discovery.models import Discovery
from app.evaluation.labelled_messages import LabelledMessage
from app.evaluation.run import DEFAULT_LIMIT, make_request
from app.evaluation.scores import Interval, Measures, mean_measures, paired_interval, score_ranking
from app.usage.priors import MAX_PRIOR, update_priors
from bench.relevance.index import IndexedSet, index_set
from bench.relevance.sets import BenchSet

_TOLERANCE = 1e-6
"""Priors are stored in single precision."""


@dataclass(frozen=True)
class Simulation:
    name: str
    successes: int
    measured: int
    without: Measures
    with_priors: Measures
    interval: Interval
    """The difference of nDCG@10 that the priors make."""
    moved: int
    """The number of messages whose answer changed its order."""
    largest_change: float
    """The largest change of a tool's score, up or down."""

    @property
    def within_bounds(self) -> bool:
        return self.largest_change <= MAX_PRIOR + _TOLERANCE


@dataclass(frozen=True)
class _Answer:
    keys: Sequence[str]
    scores: dict[str, float]
    measures: Measures


async def simulate(container: Container, bench: BenchSet) -> Simulation:
    index = await index_set(container, bench)
    needing = [item for item in bench.items if item.tools]
    training, measured = needing[::2], needing[1::2]
    before = [await _answer(container, index, item) for item in measured]
    successes = sum([await _report_success(container, index, item) for item in training])
    user_id = index.caller.require_user().id
    async with container.database.transaction(user_id) as session:
        await update_priors(session, user_id)
    after = [await _answer(container, index, item) for item in measured]
    return Simulation(
        name=bench.name,
        successes=successes,
        measured=len(measured),
        without=_mean(before),
        with_priors=_mean(after),
        interval=paired_interval(_gains(before), _gains(after)),
        moved=sum(one.keys != other.keys for one, other in zip(before, after, strict=True)),
        largest_change=max(_largest_change(one, other) for one, other in zip(before, after, strict=True)),
    )


def format_simulation(simulation: Simulation) -> str:
    head = (
        f"{simulation.name}: {simulation.successes} successes of one half of the messages, "
        f"{simulation.measured} of the other half measured"
    )
    interval = simulation.interval
    return "\n".join(
        [
            head,
            f"{'':17}{'hit@1':>7}{'R@5':>7}{'R@10':>7}{'nDCG@10':>9}{'MRR':>7}",
            _format_line("without priors", simulation.without),
            _format_line("with priors", simulation.with_priors),
            f"nDCG@10 {interval.difference:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]; "
            f"{simulation.moved} answers changed their order; largest change of a score "
            f"{simulation.largest_change:.4f}, {'within' if simulation.within_bounds else 'BEYOND'} {MAX_PRIOR:g}",
        ]
    )


async def _discover(container: Container, index: IndexedSet, item: LabelledMessage) -> Discovery:
    request = make_request(item, limit=DEFAULT_LIMIT, project_id=None)
    return await discover(container.discoverer, index.caller, request)


async def _report_success(container: Container, index: IndexedSet, item: LabelledMessage) -> int:
    """Report success for every relevant tool, found or not: a user who knows the tool runs it anyway."""
    discovery = await _discover(container, index, item)
    scope = Scope(index.caller.require_user().id, container.model.id)
    relevant = [index.keys[label] for label in item.tools if label in index.keys]
    for key in relevant:
        await give_feedback(container.discoverer, scope, discovery.id, key, "succeeded")
    return len(relevant)


async def _answer(container: Container, index: IndexedSet, item: LabelledMessage) -> _Answer:
    found = (await _discover(container, index, item)).tools
    keys = [tool.definition.tool_id for tool in found]
    relevant = {index.keys.get(label, label) for label in item.tools}
    return _Answer(keys, {tool.definition.tool_id: tool.score or 0.0 for tool in found}, score_ranking(keys, relevant))


def _largest_change(before: _Answer, after: _Answer) -> float:
    both = before.scores.keys() & after.scores.keys()
    return max((abs(after.scores[key] - before.scores[key]) for key in both), default=0.0)


def _mean(answers: Sequence[_Answer]) -> Measures:
    return mean_measures([each.measures for each in answers]) or Measures(0, 0, 0, 0, 0)


def _gains(answers: Sequence[_Answer]) -> list[float]:
    return [each.measures.ndcg_at_10 for each in answers]


def _format_line(name: str, means: Measures) -> str:
    first = "".join(f"{value:7.3f}" for value in (means.hit_at_1, means.recall_at_5, means.recall_at_10))
    return f"{name:17}{first}{means.ndcg_at_10:9.3f}{means.reciprocal_rank:7.3f}"
