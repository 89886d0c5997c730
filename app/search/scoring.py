"""The score of a tool for a query, in Python and in SQL. Pure.

    score    = max(text_0, (text_0 + text_n) / 2 for each subquery n) + boost
    text_n   = cosine_weight * (cosine_n - baseline) + bm25_weight * bm25_n
    boost    = matching tags + matching action + past use + recent call

`text_0` is the evidence for the whole search text, `baseline` the cosine of an unrelated tool in the model's own scale.
Nothing is scaled to the best candidate, so a score means the same in every answer, and a word weighs the more, the
rarer it is among the user's own tools. Evidence for a subquery lifts a tool halfway up to it. The boosts are small.

Postgres scores every visible tool to find the candidates, Python scores the candidates again to rank them, and the
in-memory search uses Python alone. Each rule therefore stands here twice, first in Python and then in SQL;
`tests/integration/search/test_scoring_sql.py` compares the two.

The formula was chosen on public sets of labelled messages (`make bench-relevance`). On all of them the sum is level
with or ahead of scores that are normalized to 0..1 over a pool of candidates, and it needs no pool.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

from app.embeddings.calibration import UNCALIBRATED, Calibration
from app.search.bm25 import query_term_ids
from app.search.intents import Action, compare_actions, detect_requested_actions
from app.search.query import Query
from app.usage.priors import MAX_PRIOR

Strategy = Literal["hybrid", "semantic", "bm25"]

BM25_WEIGHT = 0.011
"""The weight of one unit of BM25, where the distance from an unrelated to an identical text weighs 1."""
TAG_BOOST = 0.2
ACTION_BOOST = 0.03
"""Added for a tool that performs a requested action, subtracted for a tool that performs another."""
CALLED_BOOST = 0.03
"""Added for a tool that the conversation called recently."""
MIN_BM25_SHARE = 0.5
"""A tool below the cosine threshold must reach this share of the query's maximum BM25."""

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

    @property
    def similarity(self) -> float | None:
        return self.similarities[0]


@dataclass(frozen=True)
class ScoringParams:
    """What scoring uses of a request.

    `threshold` applies to the plain cosine. If it is None, the model's calibrated threshold applies, and the model's
    calibration also decides whether any tool fits.
    """

    query: Query
    strategy: Strategy
    threshold: float | None
    tags: Sequence[str] = ()
    calibration: Calibration = UNCALIBRATED

    @property
    def min_similarity(self) -> float:
        return self.calibration.threshold if self.threshold is None else self.threshold

    @cached_property
    def term_ids(self) -> Sequence[Sequence[int]]:
        """The term ids of each text of the query; those of a subquery are a subset of the search text's."""
        if self.strategy == "semantic":
            return [() for _ in self.query.texts]
        search_ids = query_term_ids(self.query.search_text)
        known = set(search_ids)
        subquery_ids = map(query_term_ids, self.query.subqueries)
        return [search_ids, *([term_id for term_id in term_ids if term_id in known] for term_ids in subquery_ids)]

    @cached_property
    def requested_actions(self) -> int:
        """The actions as a number; 0 for a strategy that uses a single kind of evidence."""
        if self.strategy != "hybrid":
            return 0
        return int(detect_requested_actions(self.query.subqueries or (self.query.search_text,)))


@dataclass(frozen=True)
class Weights:
    """How evidence is weighed: `cosine` for a cosine above `baseline`, and one `bm25` for each text of the query.

    A tool passes with a cosine of at least `min_cosine` or a BM25 of at least `min_bm25`.
    """

    baseline: float
    cosine: float
    bm25: Sequence[float]
    min_cosine: float
    min_bm25: float


def make_weights(params: ScoringParams, max_bm25s: Sequence[float]) -> Weights:
    """Return the weights of a strategy. `max_bm25s`: the upper bound of BM25 for each text of the query."""
    # A threshold of zero lets every tool pass, even one with a negative cosine or without an embedding.
    min_cosine = params.min_similarity if params.min_similarity > 0 else -1.0
    if params.strategy == "semantic":
        return Weights(0.0, 1.0, [0.0] * len(max_bm25s), min_cosine, min_bm25=_UNREACHABLE)
    if params.strategy == "bm25":
        shares = [1 / max_bm25 if max_bm25 else 0.0 for max_bm25 in max_bm25s]
        return Weights(0.0, 0.0, shares, min_cosine=_UNREACHABLE, min_bm25=_SMALLEST_BM25)
    min_bm25 = MIN_BM25_SHARE * max_bm25s[0] or _UNREACHABLE
    return make_hybrid_weights(params.calibration, len(max_bm25s), min_cosine, min_bm25)


def make_hybrid_weights(
    calibration: Calibration, texts: int, min_cosine: float = _UNREACHABLE, min_bm25: float = _UNREACHABLE
) -> Weights:
    """Return the weights of the strategy `hybrid`, by default with a threshold that no tool passes."""
    return Weights(calibration.unrelated, 1 / calibration.span, [BM25_WEIGHT] * texts, min_cosine, min_bm25)


def make_sql_parameters(params: ScoringParams, weights: Weights) -> dict[str, Any]:
    """Return the parameters of the SQL forms below."""
    bm25_weights = {f"bm25_weight_{text}": weight for text, weight in enumerate(weights.bm25)}
    return bm25_weights | {
        "baseline": weights.baseline,
        "cosine_weight": weights.cosine,
        "min_cosine": weights.min_cosine,
        "min_bm25": weights.min_bm25,
        "requested_actions": params.requested_actions,
        "called": list(params.query.called),
        "boosted_tags": list(params.tags),
    }


def score_text(candidate: Candidate, weights: Weights, text: int) -> float:
    """Return the evidence for one text of the query. A tool without an embedding counts as unrelated by meaning."""
    similarity = candidate.similarities[text]
    above_baseline = 0.0 if similarity is None else similarity - weights.baseline
    return weights.cosine * above_baseline + weights.bm25[text] * candidate.bm25s[text]


def _score_text_sql(text: int) -> str:
    return f"(%(cosine_weight)s * coalesce(similarity_{text} - %(baseline)s, 0) + %(bm25_weight_{text})s * bm25_{text})"


def score_texts(candidate: Candidate, weights: Weights) -> float:
    """Return the evidence for the search text, raised by the best subquery."""
    best = search_text = score_text(candidate, weights, 0)
    for subquery in range(1, len(weights.bm25)):
        best = max(best, (search_text + score_text(candidate, weights, subquery)) / 2)
    return best


def score_texts_sql(texts: int) -> str:
    search_text, *subqueries = (_score_text_sql(text) for text in range(texts))
    if not subqueries:
        return search_text
    return f"greatest({', '.join([search_text, *(f'({search_text} + {subquery}) / 2' for subquery in subqueries)])})"


def compute_boost(candidate: Candidate, params: ScoringParams) -> float:
    """Return what tags, the tool's action, past use (at most `MAX_PRIOR`) and a recent call add to the score."""
    tags = TAG_BOOST * len(match_tags(candidate.tags, params)) if params.tags else 0.0
    action = ACTION_BOOST * compare_actions(params.requested_actions, candidate.action)
    called = CALLED_BOOST if candidate.tool_name in params.query.called else 0.0
    return tags + action + min(candidate.prior, MAX_PRIOR) + called


def match_tags(tags: Sequence[str], params: ScoringParams) -> list[str]:
    return sorted(set(tags).intersection(params.tags)) if params.tags else []


# The casts matter: a plain 0.03 is a numeric, which Postgres would convert for each row.
_BOOST_SQL = f"""
    CASE WHEN action = 0 OR %(requested_actions)s = 0 THEN 0::float8
         WHEN action & %(requested_actions)s > 0 THEN {ACTION_BOOST}::float8 ELSE -{ACTION_BOOST}::float8 END
    + least(prior, {MAX_PRIOR})
    + CASE WHEN tool_name = ANY(%(called)s::text[]) THEN {CALLED_BOOST}::float8 ELSE 0::float8 END
"""
_TAG_BOOST_SQL = f"""
    + {TAG_BOOST}::float8 * cardinality(ARRAY(SELECT unnest(tags) INTERSECT SELECT unnest(%(boosted_tags)s::text[])))
"""


def boost_sql(*, with_tags: bool) -> str:
    """Leave tags out if the request names none: comparing them takes longer than the rest of the score."""
    return _BOOST_SQL + (_TAG_BOOST_SQL if with_tags else "")


def passes_threshold(candidate: Candidate, weights: Weights) -> bool:
    if candidate.bm25s[0] >= weights.min_bm25 or weights.min_cosine <= -1:
        return True
    return any(similarity is not None and similarity >= weights.min_cosine for similarity in candidate.similarities)


def passes_threshold_sql(texts: int) -> str:
    similarities = ", ".join(f"similarity_{text}" for text in range(texts))
    return f"(bm25_0 >= %(min_bm25)s OR coalesce(greatest({similarities}), -1) >= %(min_cosine)s)"
