"""The tags that a message names: "show the billing overview" names `billing`. Their tools rank a little higher.

The user's tags are read from Postgres and cached with the catalogue's version, as document frequencies are.
"""

from collections.abc import Mapping, Sequence

from app.catalog.visibility import TAGS, VISIBLE, CacheKey, Scope
from app.db.engine import Reader
from app.limits.byte_cache import ByteCache
from app.search.tokenizer import tokenize

_MAX_CACHE_BYTES = 32 * 1024 * 1024
TAG_BYTES = 500
"""About the memory of a tag with its terms."""
_CACHE_TTL_S = 600.0
MAX_TAGS = 5_000
"""Of a scope: further ones, by name, are not looked for in messages."""

_LIST_TAGS = f"""
    SELECT (SELECT catalog_version FROM users WHERE id = %(user_id)s),
           ARRAY(SELECT DISTINCT tag COLLATE "C" FROM mcp_tool_embeddings v, unnest({TAGS}) tag
                 WHERE {VISIBLE} ORDER BY 1 LIMIT {MAX_TAGS})
"""
_SEPARATORS = str.maketrans("-_./:", "     ")

TagTerms = Mapping[str, frozenset[str]]
"""The terms of each tag, by tag. A tag without a term, such as `the`, is left out."""


def make_tag_terms(tags: Sequence[str]) -> TagTerms:
    terms = {tag: frozenset(tokenize(tag.lower().translate(_SEPARATORS))) for tag in tags}
    return {tag: of_tag for tag, of_tag in terms.items() if of_tag}


def find_named_tags(message: str, tag_terms: TagTerms) -> list[str]:
    """Return the tags all of whose words are in the message, in whatever form and order."""
    if not tag_terms:
        return []
    message_terms = set(tokenize(message))
    return [tag for tag, terms in tag_terms.items() if terms <= message_terms]


class TagCache:
    def __init__(self) -> None:
        self._cache: ByteCache[tuple[CacheKey, str], tuple[int, TagTerms]] = ByteCache(
            _MAX_CACHE_BYTES,
            get_owner=lambda key: key[0][0],
            measure=lambda entry: TAG_BYTES * len(entry[1]),
            ttl_s=_CACHE_TTL_S,
        )

    async def get(self, reader: Reader, scope: Scope, version: int) -> TagTerms:
        """Return the tags of the scope at this version of the catalogue, whatever the request filters by."""
        key = scope.cache_key, scope.model
        cached = self._cache.get(key)
        if cached is not None and cached[0] == version:
            return cached[1]
        [(read_version, tags)] = await reader.rows(_LIST_TAGS, scope.without_filters().parameters())
        tag_terms = make_tag_terms(tags)
        self._cache[key] = read_version, tag_terms
        return tag_terms
