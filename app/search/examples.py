"""What the examples of a tool add to its score, in SQL.

    evidence = sum over the tool's examples of weight * closeness ** CLOSENESS_POWER
    closeness = (cosine of message and example - floor) / (1 - floor), 0 below the floor
    boost = MAX_BOOST * (1 - exp(-evidence / SCALE)) * share    for evidence above 0
    boost = -MAX_PENALTY * (1 - exp(evidence / SCALE))          for evidence below 0

`floor` is part of the model's calibration: nearly all pairs of unrelated messages are below it. `share` is the tool's
part of the evidence of all tools, so that two tools which were used for the same kind of message compete, and a tool
that was used once by mistake gives way to the one that is used again and again. The weights fade with time
(`usage/examples.py`). The boost is bounded, and a message that is like none of the examples is not affected.

The constants were chosen by simulation: `make bench-relevance ARGS="--feedback …"`.
"""

from app.usage.examples import DECAYED_WEIGHT

MAX_BOOST = 0.45
"""Nine of ten right tools that are not first are less than half of this behind the first."""
MAX_PENALTY = 0.15
"""A third of the boost: that a tool was irrelevant once says less than that it was right."""
SCALE = 0.2
CLOSENESS_POWER = 3

_NEAREST_EXAMPLES = 100

MIN_BOOST_TO_PASS = 0.1
"""A tool whose examples add this much passes, however far its description is from the message."""
MIN_BOOST_TO_ANSWER = 0.2
"""A message for which the examples of a tool add this much is not answered with nothing."""


def example_boosts_sql(texts: int) -> str:
    """Return a scalar subquery: a JSON object with the boost of each tool that has any, by id, or null.

    It does not depend on the rows that are searched, so that it is computed once, and costs next to nothing for users
    without examples. A message is as close to an example as the closest of its texts.
    """
    cosines = ", ".join(f"1 - (e.vector <=> %(vector_{text})s::halfvec)" for text in range(texts))
    closeness = f"power((cosine - %(example_floor)s) / (1 - %(example_floor)s), {CLOSENESS_POWER})"
    return f"""(
        SELECT jsonb_object_agg(tool_id, %(example_weight)s * CASE
            WHEN evidence > 0 THEN {MAX_BOOST} * (1 - exp(-evidence / {SCALE})) * evidence / total
            ELSE -{MAX_PENALTY} * (1 - exp(evidence / {SCALE})) END)
        FROM (
            SELECT tool_id, sum(weight * {closeness}) AS evidence,
                   sum(greatest(sum(weight * {closeness}), 0)) OVER () AS total
            FROM (
                SELECT e.tool_id, {DECAYED_WEIGHT} AS weight, greatest({cosines}) AS cosine FROM tool_examples e
                WHERE e.user_id = %(user_id)s AND e.model = %(model)s AND (e.source <> 'use' OR %(learned)s)
            ) example
            WHERE cosine > %(example_floor)s GROUP BY tool_id
        ) by_tool
    )"""


def nearest_examples_sql(texts: int) -> str:
    """Return the ids of the tools whose examples are nearest to any text of the message, for a search through HNSW."""
    distances = ", ".join(f"e.vector <=> %(vector_{text})s::halfvec" for text in range(texts))
    return f"""
        (SELECT e.tool_id FROM tool_examples e
         WHERE e.user_id = %(user_id)s AND e.model = %(model)s AND e.weight > 0
           AND (e.source <> 'use' OR %(learned)s)
         ORDER BY least({distances}) LIMIT {_NEAREST_EXAMPLES})
    """
