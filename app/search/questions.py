"""Questions that users asked recently, with what was computed of them."""

from app.limits.byte_cache import ByteCache
from app.search.glossary import Glossary
from app.search.query import Query

_MAX_BYTES = 16 * 1024 * 1024
_ENTRY_BYTES = 4_000
_BYTES_PER_CHARACTER = 8


class QuestionCache:
    """Expands queries with the glossary. A question that its user asks again is the same object, with its terms.

    Users do not share entries: the time that a question takes must not tell whether somebody else has asked it.
    """

    def __init__(self, glossary: Glossary) -> None:
        self._glossary = glossary
        self._expanded: ByteCache[tuple[str, Query], Query] = ByteCache(
            _MAX_BYTES, get_owner=lambda key: key[0], measure=_estimate_bytes
        )

    def expand(self, user_id: str, query: Query) -> Query:
        key = user_id, query
        expanded = self._expanded.get(key)
        if expanded is None:
            expanded = self._expanded[key] = self._glossary.expand(query)
        return expanded


def _estimate_bytes(query: Query) -> int:
    """Estimate the memory of a query as key and value: its texts in several forms, and its terms."""
    return _ENTRY_BYTES + _BYTES_PER_CHARACTER * sum(map(len, (query.user_text, query.context, *query.texts)))
