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

Postgres scores every visible tool to find the candidates, Python scores the candidates again to rank them, and the
in-memory search uses Python alone. Each rule therefore stands here twice, first in Python and then in SQL;
`tests/integration/search/test_scoring_sql.py` compares the two.

The formula was chosen on public sets of labelled messages (`make bench-relevance`). On all of them the sum is level
with or ahead of scores that are normalized to 0..1 over a pool of candidates, and it needs no pool.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal, NamedTuple

from app.embeddings.calibration import UNCALIBRATED, Calibration
from app.search.bm25 import query_term_ids
from app.search.examples import MIN_BOOST_TO_PASS
from app.search.intents import Action, compare_actions, detect_requested_actions
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
        return [query_term_ids(text) for text in self.query.lexical_texts]

    @cached_property
    def all_term_ids(self) -> Sequence[int]:
        """The distinct term ids of all texts."""
        return list(dict.fromkeys(chain.from_iterable(self.term_ids)))

    @property
    def message_term_ids(self) -> Sequence[int]:
        """Those term ids of the search text that are the message's own words."""
        own = set(query_term_ids(self.query.search_text))
        return [term_id for term_id in self.term_ids[0] if term_id in own]

    @cached_property
    def requested_actions(self) -> int:
        """The actions as a number; 0 for a strategy that uses a single kind of evidence."""
        if self.strategy != "hybrid":
            return 0
        texts = self.query.subqueries or (self.query.search_text,)
        return int(detect_requested_actions(texts) or detect_requested_actions([self.query.expansion]))


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

    @property
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
        "min_cosine": weights.min_cosine,
        "min_bm25": weights.min_bm25,
        "example_weight": weights.examples,
        "example_floor": params.calibration.example_floor,
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


def _score_text_sql(text: int) -> str:
    above_baseline = f"coalesce(similarity_{text} - %(baseline)s - %(center_weight)s * center_cosine, 0)"
    return f"(%(cosine_weight)s * {above_baseline} + %(bm25_weight_{text})s * bm25_{text})"


def score_alone(candidate: Candidate, weights: Weights) -> float:
    """Return the evidence for the search text without its context, raised by the best subquery."""
    best = search_text = score_text(candidate, weights, 0)
    for subquery in weights.subqueries:
        best = max(best, (search_text + score_text(candidate, weights, subquery)) / 2)
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


def score_texts_sql(texts: int, *, has_context: bool) -> str:
    alone = score_alone_sql(texts, has_context=has_context)
    return (
        f"({1 - CONTEXT_WEIGHT} * {alone} + {CONTEXT_WEIGHT} * {_score_text_sql(texts - 1)})" if has_context else alone
    )


def compute_boost(candidate: Candidate, params: ScoringParams) -> float:
    """Return what tags, the tool's action, past use (at most `MAX_PRIOR`), examples and recent calls add to the
    score."""
    tags = TAG_BOOST * len(match_tags(candidate.tags, params)) if params.tags else 0.0
    action = ACTION_BOOST * compare_actions(params.requested_actions, candidate.action)
    use = min(candidate.prior, MAX_PRIOR) + candidate.example_boost
    return tags + boost_named_tag(candidate.tags, params) + action + use + _boost_recent_call(candidate, params)


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
    return any(similarity is not None and similarity >= weights.min_cosine for similarity in candidate.similarities)


def passes_threshold_sql(texts: int) -> str:
    similarities = ", ".join(f"similarity_{text}" for text in range(texts))
    cosine = f"coalesce(greatest({similarities}), -1) >= %(min_cosine)s"
    return f"(bm25_0 >= %(min_bm25)s OR {cosine} OR example_boost >= %(min_examples)s)"
