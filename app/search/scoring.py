"""The score of a tool for a query, in Python and in SQL. Pure.

    score    = alone, or in a conversation 0.6 * alone + 0.4 * text_c, + boost
    alone    = max(text_0, (text_0 + text_n) / 2 for each subquery n)
    text_n   = cosine_weight * (cosine_n - baseline) + bm25_weight * bm25_n
    baseline = unrelated + center_weight * (center_cosine - center_unrelated)
    boost    = matching tags + named tag + matching action + past use + examples
               + recent call of the tool or its server

`text_0` is the evidence for the whole search text, `text_c` for the search text in the context of the turns before it.
`baseline` is the cosine of the tool and an unrelated message. It differs between tools: some, with short or general
descriptions, are near to every message. `center` is the mean of many messages' vectors, so that the tool's cosine with
it tells how near the tool is to messages in general. What the tool's examples add is in `examples.py`.

Nothing is scaled to the best candidate, so a score means the same in every answer, and a word weighs the more, the
rarer it is among the user's own tools. Evidence for a subquery lifts a tool halfway up to it. The boosts are small.

Every visible tool is scored to find the candidates, in Postgres or in memory, and Python scores the candidates again to
rank them. Each rule therefore stands here three times: in Python for one candidate, in numpy for all tools, and in SQL;
`tests/integration/search/test_scoring_sql.py` compares the three.

The formula was chosen on public sets of labelled messages (`make bench-relevance`). On all of them the sum is level
with or ahead of scores that are normalized to 0..1 over a pool of candidates, and it needs no pool.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from app.embeddings.calibration import UNCALIBRATED, Calibration
from app.search.candidates import COSINE_ERROR
from app.search.examples import MIN_BOOST_TO_PASS
from app.search.intents import Action, compare_actions
from app.search.query import Query
from app.usage.priors import MAX_PRIOR

Strategy = Literal["hybrid", "semantic", "bm25"]
AnsweredStrategy = Literal["hybrid", "semantic", "bm25", "cloud"]
"""What may have answered: a search of our own, or the cloud."""

BM25_WEIGHT = 0.011
"""The weight of one unit of BM25, where the distance from an unrelated to an identical text weighs 1."""
TAG_BOOST = 0.2
NAMED_TAG_BOOST = 0.05
"""Added, once, for a tool with a tag that the message names: as much as a rare word that matches."""
ACTION_BOOST = 0.03
"""Added for a tool that performs a requested action, subtracted for a tool that performs another."""
CALLED_BOOST = 0.15
"""Added for a tool that the conversation called recently."""
SIBLING_BOOST = 0.1
"""Added for the other tools of a server of which the conversation called a tool recently."""
CONTEXT_WEIGHT = 0.4
"""The weight of the reading in context; the message alone has the rest."""
BEST_ALONE = 3
"""How many of the best tools for the message alone are candidates in any case, whatever the context finds."""
CONTEXT_BM25_WEIGHT = BM25_WEIGHT / 2
"""Earlier turns have many words, and BM25 is a sum over the words."""
MIN_BM25_SHARE = 0.5
"""A tool below the cosine threshold must reach this share of the query's maximum BM25."""

BM25_ERROR = 1e-5
"""More than a BM25 in single precision differs from the exact one, as a share of it."""

_SMALLEST_BM25 = 1e-9
_UNREACHABLE = 1e9


class Candidate(NamedTuple):
    """A tool with its evidence for each text of the query: the search text first, then each subquery.

    It is a tuple because every search makes about a hundred.
    """

    tool_id: str
    server_name: str
    tool_name: str
    tags: Sequence[str]
    similarities: Sequence[float | None]
    bm25s: Sequence[float]
    action: int = Action.UNKNOWN
    prior: float = 0.0
    center_cosine: float = 0.0
    is_sibling: bool = False
    """Whether a tool of the same server was called recently."""
    example_boost: float = 0.0

    @property
    def similarity(self) -> float | None:
        return self.similarities[0]


Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Rows = npt.NDArray[np.integer[Any]]


class EvidenceColumns(NamedTuple):
    """The evidence for all tools, in arrays with an element for each tool; one array for each text of the query."""

    similarities: Sequence[Floats] | None
    """None for a search by words alone."""
    has_vector: npt.NDArray[np.bool_] | None
    """None: every tool has an embedding."""
    bm25s: Sequence[Floats]
    center_cosines: Floats | float
    example_boosts: Floats | float


class ToolColumns(Protocol):
    """What boosts depend on, for all tools."""

    @property
    def actions(self) -> npt.NDArray[np.int16]: ...

    @property
    def priors(self) -> npt.NDArray[np.float64]: ...

    def find_tagged(self, tag: str) -> Rows:
        """Return the rows of the tools that have the tag."""

    def find_called(self, query: Query) -> tuple[Rows, npt.NDArray[np.bool_]]:
        """Return the rows of the tools that the conversation called recently, and which tools share a server with
        one."""


@dataclass(frozen=True)
class ScoringParams:
    """What scoring uses of a request.

    `threshold` applies to the plain cosine. If it is None, the model's calibrated threshold applies, and the model's
    calibration also decides whether any tool fits. `fill`: return as many tools as the limit allows.
    """

    query: Query
    strategy: Strategy
    threshold: float | None
    tags: Sequence[str] = ()
    calibration: Calibration = UNCALIBRATED
    fill: bool = False
    named_tags: Sequence[str] = ()
    """The tags that the message names; none for a search by meaning alone."""
    learned: bool = True
    """Whether examples that were learnt from uses count."""

    @property
    def min_similarity(self) -> float:
        return self.calibration.threshold if self.threshold is None else self.threshold

    @cached_property
    def term_ids(self) -> Sequence[Sequence[int]]:
        """The term ids of each text of the query."""
        if self.strategy == "semantic":
            return [() for _ in self.query.texts]
        return self.query.term_ids

    @cached_property
    def all_term_ids(self) -> Sequence[int]:
        """The distinct term ids of all texts."""
        return list(dict.fromkeys(chain.from_iterable(self.term_ids)))

    @cached_property
    def message_term_ids(self) -> Sequence[int]:
        """Those term ids of the search text that are the message's own words."""
        return self.term_ids[0] if self.strategy == "semantic" else self.query.own_term_ids

    @cached_property
    def requested_actions(self) -> int:
        """The actions as a number; 0 for a strategy that uses a single kind of evidence."""
        return self.query.requested_actions if self.strategy == "hybrid" else 0


@dataclass(frozen=True)
class Weights:
    """How evidence is weighed: `cosine` for a cosine above the baseline, and one `bm25` for each text of the query.

    The baseline of a tool is `baseline + center * center_cosine`. The last text is the reading in context if
    `has_context` is set. A tool passes with a cosine of at least `min_cosine`, a BM25 of at least `min_bm25`, or
    examples that add at least `min_examples`. `examples` is the weight of what examples add.
    """

    baseline: float
    center: float
    cosine: float
    bm25: Sequence[float]
    min_cosine: float
    min_bm25: float
    has_context: bool = False
    examples: float = 0.0
    min_examples: float = _UNREACHABLE

    @cached_property
    def subqueries(self) -> range:
        """The positions of the subqueries among the texts."""
        return range(1, len(self.bm25) - self.has_context)


def make_weights(params: ScoringParams, max_bm25s: Sequence[float], max_message_bm25: float) -> Weights:
    """Return the weights of a strategy.

    `max_bm25s` is the upper bound of BM25 for each text of the query, `max_message_bm25` for the message's own words.
    """
    # A threshold of zero lets every tool pass, even one with a negative cosine or without an embedding.
    min_cosine = params.min_similarity if params.min_similarity > 0 else -1.0
    has_context = bool(params.query.context)
    # A threshold of the request decides alone.
    min_examples = MIN_BOOST_TO_PASS if params.threshold is None else _UNREACHABLE
    if params.strategy == "semantic":
        unweighted = [0.0] * len(max_bm25s)
        span = params.calibration.span  # here a cosine counts as it is, and not as a share of the span
        return Weights(0.0, 0.0, 1.0, unweighted, min_cosine, _UNREACHABLE, has_context, span, span * min_examples)
    if params.strategy == "bm25":
        shares = [1 / max_bm25 if max_bm25 else 0.0 for max_bm25 in max_bm25s]
        return Weights(0.0, 0.0, 0.0, shares, _UNREACHABLE, _SMALLEST_BM25, has_context)
    return make_hybrid_weights(params, min_cosine, MIN_BM25_SHARE * max_message_bm25 or _UNREACHABLE, min_examples)


def make_hybrid_weights(
    params: ScoringParams,
    min_cosine: float = _UNREACHABLE,
    min_bm25: float = _UNREACHABLE,
    min_examples: float = _UNREACHABLE,
) -> Weights:
    """Return the weights of the strategy `hybrid`, by default with a threshold that no tool passes."""
    calibration, has_context = params.calibration, bool(params.query.context)
    alone = [BM25_WEIGHT] * (len(params.query.texts) - has_context)
    return Weights(
        baseline=calibration.unrelated - calibration.center_weight * calibration.center_unrelated,
        center=calibration.center_weight,
        cosine=1 / calibration.span,
        bm25=[*alone, *([CONTEXT_BM25_WEIGHT] * has_context)],
        min_cosine=min_cosine,
        min_bm25=min_bm25,
        has_context=has_context,
        examples=1.0,
        min_examples=min_examples,
    )


def make_sql_parameters(params: ScoringParams, weights: Weights) -> dict[str, Any]:
    """Return the parameters of the SQL forms below."""
    bm25_weights = {f"bm25_weight_{text}": weight for text, weight in enumerate(weights.bm25)}
    return bm25_weights | {
        "baseline": weights.baseline,
        "center_weight": weights.center,
        "cosine_weight": weights.cosine,
        # Postgres computes in single precision; the exact test follows.
        "min_cosine": weights.min_cosine - COSINE_ERROR if weights.min_cosine > -1 else weights.min_cosine,
        "min_bm25": weights.min_bm25 * (1 - BM25_ERROR),
        "min_examples": weights.min_examples,
        "learned": params.learned,
        "requested_actions": params.requested_actions,
        "called": list(params.query.called),
        "boosted_tags": list(params.tags),
        "named_tags": list(params.named_tags),
    }


def score_text(candidate: Candidate, weights: Weights, text: int) -> float:
    """Return the evidence for one text of the query. A tool without an embedding counts as unrelated by meaning."""
    similarity = candidate.similarities[text]
    bm25 = weights.bm25[text] * candidate.bm25s[text]
    if similarity is None:
        return bm25
    return weights.cosine * (similarity - weights.baseline - weights.center * candidate.center_cosine) + bm25


def _score_text_columns(columns: EvidenceColumns, weights: Weights, text: int) -> Floats:
    bm25 = weights.bm25[text] * columns.bm25s[text]
    if columns.similarities is None or not weights.cosine:
        return bm25
    baseline = weights.baseline + weights.center * columns.center_cosines if weights.center else weights.baseline
    above_baseline = weights.cosine * (columns.similarities[text] - baseline)
    if columns.has_vector is not None:
        above_baseline = np.where(columns.has_vector, above_baseline, 0.0)
    return above_baseline + bm25


def _score_text_sql(text: int) -> str:
    above_baseline = f"coalesce(similarity_{text} - %(baseline)s - %(center_weight)s * center_cosine, 0)"
    return f"(%(cosine_weight)s * {above_baseline} + %(bm25_weight_{text})s * bm25_{text})"


def score_alone(candidate: Candidate, weights: Weights) -> float:
    """Return the evidence for the search text without its context, raised by the best subquery."""
    best = search_text = score_text(candidate, weights, 0)
    for subquery in weights.subqueries:
        best = max(best, (search_text + score_text(candidate, weights, subquery)) / 2)
    return best


def score_alone_columns(columns: EvidenceColumns, weights: Weights) -> Floats:
    best = search_text = _score_text_columns(columns, weights, 0)
    for subquery in weights.subqueries:
        best = np.maximum(best, (search_text + _score_text_columns(columns, weights, subquery)) / 2)
    return best


def score_alone_sql(texts: int, *, has_context: bool) -> str:
    search_text, *subqueries = (_score_text_sql(text) for text in range(texts - has_context))
    lifted = [f"({search_text} + {subquery}) / 2" for subquery in subqueries]
    return f"greatest({', '.join([search_text, *lifted])})" if lifted else search_text


def score_texts(candidate: Candidate, weights: Weights) -> float:
    """Return the evidence for the message alone, blended with the evidence for its reading in context."""
    alone = score_alone(candidate, weights)
    if not weights.has_context:
        return alone
    return (1 - CONTEXT_WEIGHT) * alone + CONTEXT_WEIGHT * score_text(candidate, weights, len(weights.bm25) - 1)


def score_texts_columns(columns: EvidenceColumns, weights: Weights, alone: Floats) -> Floats:
    """`alone` is what `score_alone_columns` returns, which a search needs by itself as well."""
    if not weights.has_context:
        return alone
    in_context = _score_text_columns(columns, weights, len(weights.bm25) - 1)
    return (1 - CONTEXT_WEIGHT) * alone + CONTEXT_WEIGHT * in_context


def score_texts_sql(texts: int, *, has_context: bool) -> str:
    alone = score_alone_sql(texts, has_context=has_context)
    return (
        f"({1 - CONTEXT_WEIGHT} * {alone} + {CONTEXT_WEIGHT} * {_score_text_sql(texts - 1)})" if has_context else alone
    )


def compute_boost(candidate: Candidate, params: ScoringParams) -> float:
    """Return what tags, the tool's action, past use (at most `MAX_PRIOR`), examples and recent calls add to the
    score."""
    boost = min(candidate.prior, MAX_PRIOR) + candidate.example_boost
    if params.requested_actions:
        boost += ACTION_BOOST * compare_actions(params.requested_actions, candidate.action)
    if params.tags:
        boost += TAG_BOOST * len(match_tags(candidate.tags, params))
    if params.named_tags:
        boost += boost_named_tag(candidate.tags, params)
    if params.query.called:
        boost += _boost_recent_call(candidate, params)
    return boost


def compute_boost_columns(tools: ToolColumns, params: ScoringParams, example_boosts: Floats | float) -> Floats:
    boosts: Floats = np.minimum(tools.priors, MAX_PRIOR) + example_boosts
    if params.requested_actions:
        boosts += _make_action_boosts(params.requested_actions)[tools.actions]
    for tag in dict.fromkeys(params.tags):
        boosts[tools.find_tagged(tag)] += TAG_BOOST
    if params.named_tags:
        boosts[np.unique(np.concatenate([tools.find_tagged(tag) for tag in params.named_tags]))] += NAMED_TAG_BOOST
    if params.query.called:
        called, is_sibling = tools.find_called(params.query)
        recent = np.where(is_sibling, SIBLING_BOOST, 0.0)
        recent[called] = CALLED_BOOST
        boosts += recent
    return boosts


@lru_cache(maxsize=32)
def _make_action_boosts(requested: int) -> npt.NDArray[np.float64]:
    """Return the boost for each action that a tool may have."""
    return np.array([ACTION_BOOST * compare_actions(requested, action) for action in range(2 * max(Action))])


def boost_named_tag(tags: Sequence[str], params: ScoringParams) -> float:
    return NAMED_TAG_BOOST if any(tag in params.named_tags for tag in tags) else 0.0


def _boost_recent_call(candidate: Candidate, params: ScoringParams) -> float:
    if candidate.tool_name in params.query.called:
        return CALLED_BOOST
    return SIBLING_BOOST if candidate.is_sibling else 0.0


def match_tags(tags: Sequence[str], params: ScoringParams) -> list[str]:
    return sorted(set(tags).intersection(params.tags)) if params.tags else []


# The casts matter: a plain 0.03 is a numeric, which Postgres would convert for each row.
_BOOST_SQL = f"""
    CASE WHEN action = 0 OR %(requested_actions)s = 0 THEN 0::float8
         WHEN action & %(requested_actions)s > 0 THEN {ACTION_BOOST}::float8 ELSE -{ACTION_BOOST}::float8 END
    + least(prior, {MAX_PRIOR}) + example_boost
"""
_CALLED_BOOST_SQL = f"""
    + CASE WHEN tool_name = ANY(%(called)s::text[]) THEN {CALLED_BOOST}::float8
           WHEN is_sibling THEN {SIBLING_BOOST}::float8 ELSE 0::float8 END
"""
_TAG_BOOST_SQL = f"""
    + {TAG_BOOST}::float8 * cardinality(ARRAY(SELECT unnest(tags) INTERSECT SELECT unnest(%(boosted_tags)s::text[])))
"""


_NAMED_TAG_BOOST_SQL = f"""
    + CASE WHEN tags && %(named_tags)s::text[] THEN {NAMED_TAG_BOOST}::float8 ELSE 0::float8 END
"""


def boost_sql(*, with_tags: bool, with_named_tags: bool, with_calls: bool) -> str:
    """Leave out tags if neither the request nor the message names one, and calls if there were none: comparing them
    takes long."""
    boosts = ((_TAG_BOOST_SQL, with_tags), (_NAMED_TAG_BOOST_SQL, with_named_tags), (_CALLED_BOOST_SQL, with_calls))
    return _BOOST_SQL + "".join(sql for sql, included in boosts if included)


def passes_threshold(candidate: Candidate, weights: Weights) -> bool:
    if candidate.bm25s[0] >= weights.min_bm25 or weights.min_cosine <= -1:
        return True
    if candidate.example_boost >= weights.min_examples:
        return True
    for similarity in candidate.similarities:  # noqa: SIM110 faster than any()
        if similarity is not None and similarity >= weights.min_cosine:
            return True
    return False


def passes_threshold_columns(columns: EvidenceColumns, weights: Weights) -> npt.NDArray[np.bool_]:
    """Include tools that miss the threshold by less than single precision can tell: the exact test follows."""
    if weights.min_cosine <= -1:
        return np.ones(len(columns.bm25s[0]), np.bool_)
    passes: npt.NDArray[np.bool_] = columns.bm25s[0] >= weights.min_bm25
    if columns.similarities is not None:
        for similarities in columns.similarities:
            close = similarities >= weights.min_cosine - COSINE_ERROR
            passes |= close if columns.has_vector is None else close & columns.has_vector
    if weights.min_examples < _UNREACHABLE:
        passes |= columns.example_boosts >= weights.min_examples
    return passes


def passes_threshold_sql(texts: int) -> str:
    similarities = ", ".join(f"similarity_{text}" for text in range(texts))
    cosine = f"coalesce(greatest({similarities}), -1) >= %(min_cosine)s"
    return f"(bm25_0 >= %(min_bm25)s OR {cosine} OR example_boost >= %(min_examples)s)"
