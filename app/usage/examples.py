"""Examples of what a tool is used for: vectors of messages to which it was the right answer, or the wrong one.

An example is learnt from a use (`learning.py`), which keeps the message's vector and never its text, or written by a
person in words. A search compares the message with the examples of the user's tools (`search/examples.py`).

- Messages that hardly differ strengthen one example, up to `MAX_WEIGHT`, instead of adding another.
- The weight of a use halves every `HALF_LIFE_DAYS` since it was last strengthened. What a person wrote does not fade.
- A tool has at most `MAX_LEARNED_PER_TOOL` learnt examples and a user `MAX_LEARNED_PER_USER`; the weakest give way.

An example belongs to the model that made its vector, and a search reads those of its own model alone.

Searches hold a user's examples in memory. Every change gives the user's `examples_version` a new value, so that they
read them again.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pgvector import HalfVector
from sqlalchemy import Delete, delete, func

from app.auth.users import raise_version
from app.db.engine import Session
from app.db.tables import tool_examples
from app.errors import InvalidInput

Source = Literal["use", "person"]
Vector = npt.NDArray[np.float32]

HALF_LIFE_DAYS = 60
MAX_LEARNED_PER_TOOL = 20
MAX_LEARNED_PER_USER = 2_000
MAX_WEIGHT = 5.0
SAME_MESSAGE = 0.97
"""From this cosine on, two messages hardly differ."""
MAX_MESSAGES_PER_TOOL = 20
MAX_MESSAGE_CHARS = 500
MAX_MESSAGES_PER_USER = 2_000
"""Of what a person wrote. Every search compares the message with all examples of the user."""
LEARNED_RETENTION = timedelta(days=365)
"""By then an example has a sixty-fourth of its weight left."""

DECAYED_WEIGHT = f"""
    e.weight * CASE WHEN e.source = 'use'
                    THEN power(0.5::float8, (CURRENT_DATE - e.used_on)::float8 / {HALF_LIFE_DAYS}) ELSE 1 END
"""
"""The weight of `tool_examples e` today. It changes once a day, so that the same message has the same answer."""

_FIND_SAME = f"""
    SELECT nearest.id, nearest.weight FROM (
        SELECT e.id, {DECAYED_WEIGHT} AS weight, e.vector <=> %(vector)s::halfvec AS distance FROM tool_examples e
        WHERE e.user_id = %(user_id)s AND e.model = %(model)s AND e.tool_id = %(tool_id)s
          AND e.source = 'use' AND sign(e.weight) = %(sign)s
        ORDER BY distance, e.id LIMIT 1
    ) nearest
    WHERE nearest.distance <= {1 - SAME_MESSAGE}
"""
_STRENGTHEN = """
    UPDATE tool_examples SET weight = %(weight)s, used_on = CURRENT_DATE
    WHERE user_id = %(user_id)s AND model = %(model)s AND tool_id = %(tool_id)s AND id = %(id)s
"""
# The tool may have been deleted since the caller has seen it.
_INSERT = """
    INSERT INTO tool_examples (user_id, model, tool_id, id, vector, weight, source, text)
    SELECT t.user_id, %(model)s, t.id, new.id, new.vector, %(sign)s, %(source)s, new.text
    FROM mcp_tools t, unnest(%(ids)s::text[], %(vectors)s::halfvec[], %(texts)s::text[]) AS new (id, vector, text)
    WHERE t.user_id = %(user_id)s AND t.id = %(tool_id)s
    FOR KEY SHARE OF t
    ON CONFLICT DO NOTHING
"""
_DELETE_WEAKEST = f"""
    DELETE FROM tool_examples d USING (
        SELECT e.tool_id, e.id FROM tool_examples e
        WHERE e.user_id = %(user_id)s AND e.model = %(model)s AND e.source = 'use'
          AND (%(tool_id)s::text IS NULL OR e.tool_id = %(tool_id)s::text)
        ORDER BY abs({DECAYED_WEIGHT}) DESC, e.used_on DESC, e.created_at DESC, e.id OFFSET %(kept)s
    ) weakest
    WHERE d.user_id = %(user_id)s AND d.model = %(model)s AND d.tool_id = weakest.tool_id AND d.id = weakest.id
"""
_COUNT = """
    SELECT count(*) FILTER (WHERE weight > 0), count(*) FILTER (WHERE weight < 0) FROM tool_examples
    WHERE user_id = %(user_id)s AND model = %(model)s AND tool_id = %(tool_id)s AND source = 'use'
"""
_LIST_TEXTS = """
    SELECT text FROM tool_examples WHERE user_id = %(user_id)s AND tool_id = %(tool_id)s AND source = 'person'
    GROUP BY text ORDER BY min(id)
"""

_COUNT_OTHER_MESSAGES = """
    SELECT count(*) FROM tool_examples
    WHERE user_id = %(user_id)s AND model = %(model)s AND source = 'person' AND tool_id <> %(tool_id)s
"""
_DELETE = """
    DELETE FROM tool_examples
    WHERE user_id = %(user_id)s AND (%(tool_id)s::text IS NULL OR tool_id = %(tool_id)s::text)
      AND (%(source)s::text IS NULL OR source = %(source)s::text)
"""
_WRITTEN_FOR_OTHER_MODELS = """
    SELECT user_id, tool_id, array_agg(id ORDER BY id), array_agg(text ORDER BY id) FROM (
        SELECT DISTINCT ON (e.user_id, e.tool_id, e.id) e.user_id, e.tool_id, e.id, e.text FROM tool_examples e
        WHERE e.source = 'person' AND NOT EXISTS (
            SELECT 1 FROM tool_examples known
            WHERE known.user_id = e.user_id AND known.model = %(model)s AND known.tool_id = e.tool_id
              AND known.id = e.id
        )
        ORDER BY e.user_id, e.tool_id, e.id, e.created_at DESC
    ) missing
    GROUP BY user_id, tool_id ORDER BY user_id, tool_id
"""


@dataclass(frozen=True)
class ToolExamples:
    messages: Sequence[str]
    """What a person wrote."""
    learned: int
    """How many were learnt from uses."""
    learned_against: int
    """How many were learnt from reports that the tool was irrelevant."""


def decay_weights(
    weights: npt.NDArray[np.float64], is_use: npt.NDArray[np.bool_], days: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return `DECAYED_WEIGHT` of examples that were last strengthened so many days ago."""
    return weights * np.where(is_use, 0.5 ** (days / HALF_LIFE_DAYS), 1.0)


async def bump_examples(session: Session, user_id: str) -> None:
    """Tell searches that what is learnt from the user has changed: examples or priors."""
    await raise_version(session, user_id, "examples_version")


async def learn_example(
    session: Session, user_id: str, model: str, tool_id: str, vector: HalfVector, *, is_relevant: bool
) -> None:
    """Strengthen the example that hardly differs from this message, or add one. The caller locks the user's row."""
    owner = {"user_id": user_id, "model": model, "tool_id": tool_id}
    sign = 1 if is_relevant else -1
    same = await session.rows(_FIND_SAME, owner | {"vector": vector, "sign": sign})
    if same:
        [(example_id, weight)] = same
        strengthened = sign * min(abs(weight) + 1, MAX_WEIGHT)
        await session.rows(_STRENGTHEN, owner | {"id": example_id, "weight": strengthened})
    else:
        await _insert(session, owner, {str(uuid.uuid4()): None}, [vector], source="use", sign=sign)
        await session.rows(_DELETE_WEAKEST, owner | {"kept": MAX_LEARNED_PER_TOOL})
        await session.rows(_DELETE_WEAKEST, owner | {"tool_id": None, "kept": MAX_LEARNED_PER_USER})
    await bump_examples(session, user_id)


async def _insert(
    session: Session,
    owner: Mapping[str, Any],
    texts: Mapping[str, str | None],
    vectors: Sequence[HalfVector],
    *,
    source: Source,
    sign: int = 1,
) -> None:
    """Insert examples with these texts, by id."""
    new = {"ids": list(texts), "texts": list(texts.values()), "vectors": list(vectors)}
    await session.rows(_INSERT, {**owner, **new, "source": source, "sign": sign})


async def add_messages(
    session: Session, user_id: str, model: str, tool_id: str, messages: Mapping[str, str], vectors: Sequence[Vector]
) -> None:
    """Add the model's vectors of messages that a person wrote, by the ids of the messages."""
    owner = {"user_id": user_id, "model": model, "tool_id": tool_id}
    await _insert(session, owner, messages, [HalfVector(vector) for vector in vectors], source="person")
    await bump_examples(session, user_id)


async def replace_messages(
    session: Session, user_id: str, model: str, tool_id: str, messages: Sequence[str], vectors: Sequence[Vector]
) -> None:
    """Replace what a person wrote for the tool. The caller locks the user's row.

    Raise `InvalidInput` if the user has too many messages for all tools together.
    """
    parameters = {"user_id": user_id, "model": model, "tool_id": tool_id}
    [(others,)] = await session.rows(_COUNT_OTHER_MESSAGES, parameters)
    if others + len(messages) > MAX_MESSAGES_PER_USER:
        raise InvalidInput(
            f"a user can have {MAX_MESSAGES_PER_USER} examples in words, and the other tools have {others}: "
            "delete some of them first"
        )
    await delete_examples(session, user_id, tool_id, "person")
    # The ids keep the order, and are the same for every model.
    by_id = {f"person-{position:02}": message for position, message in enumerate(messages)}
    await add_messages(session, user_id, model, tool_id, by_id, vectors)


async def delete_examples(session: Session, user_id: str, tool_id: str | None, source: Source | None) -> None:
    """Delete the examples of a tool, or of all tools of the user: those of one source, or all. Of every model."""
    await session.rows(_DELETE, {"user_id": user_id, "tool_id": tool_id, "source": source})
    await bump_examples(session, user_id)


async def list_missing_messages(session: Session, model: str) -> list[tuple[str, str, dict[str, str]]]:
    """Return user, tool and messages, by id, that have no vector of the model. It needs the system scope."""
    rows = await session.rows(_WRITTEN_FOR_OTHER_MODELS, {"model": model})
    return [(user_id, tool_id, dict(zip(ids, texts, strict=True))) for user_id, tool_id, ids, texts in rows]


async def read_examples(session: Session, user_id: str, model: str, tool_id: str) -> ToolExamples:
    owner = {"user_id": user_id, "model": model, "tool_id": tool_id}
    [(learned, against)] = await session.rows(_COUNT, owner)
    messages = [text for (text,) in await session.rows(_LIST_TEXTS, owner)]
    return ToolExamples(messages, learned, against)


def expired_rows() -> list[Delete]:
    """Return the statements that delete expired rows of all users."""
    columns = tool_examples.c
    oldest = func.current_date() - LEARNED_RETENTION.days
    return [delete(tool_examples).where(columns.source == "use", columns.used_on < oldest)]
