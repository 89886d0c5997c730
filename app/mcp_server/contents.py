"""What stands behind `tool_discovery`: names in its description, because models do not call a tool that says nothing
about its content.

The text is short, and the same bytes until the user's servers or categories change, so that it stays in the provider's
prompt cache.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence

from app.catalog.categories import CategorySummary, list_categories, read_revision
from app.catalog.definitions import ServerSummary, list_server_summaries
from app.catalog.visibility import Scope
from app.container import Container
from app.errors import QueryFailed
from app.indexing.prompt_injection import find_instructions
from app.text.strict_json import Json

logger = logging.getLogger("toolscout.mcp")

MAX_TOKENS = 80
_BYTES_PER_TOKEN = 4
_MAX_WORDS = 4
_MAX_PARTS = 5
"""Words separated by anything, as in `acme/docs-search-server`: a sentence need not have spaces."""
_MAX_SKIPPED = 5
_SEPARATORS = re.compile(r"[\W_]+")
_PLAIN_NAME = re.compile(r"\w(?:[\w @/&+-]|\.(?! )){0,39}")
_MANY_SERVERS = 15
_MANY_TOOLS = 150


async def read_contents(container: Container, scope: Scope, version: int) -> str:
    """Return what is behind the caller's tools. `version` is that of the user's catalogue, as the request has read it:
    nothing but the revision of the categories is read from the database unless one of the two has changed."""

    async def read() -> Json:
        async with container.database.transaction(scope.user_id) as session:
            servers = await list_server_summaries(session, scope)
            categories = await list_categories(session, scope) if is_large(servers) else []
        return {"text": describe_contents(servers, container.count_tokens, categories)}

    try:
        revision = await read_revision(container.database.reader(scope.user_id), scope.user_id)
        key = ("contents", str(revision))
        contents = await container.listing_cache.get_at_version(scope, version, key, read)
    except QueryFailed:  # the tools work without it
        logger.exception("failed to read the contents of tool_discovery")
        return ""
    text: str = contents["text"]
    return text


def is_large(servers: Sequence[ServerSummary]) -> bool:
    """Whether the names of servers would say too little of what there is."""
    return len(servers) > _MANY_SERVERS or sum(server.tools for server in servers) > _MANY_TOOLS


def describe_contents(
    servers: Sequence[ServerSummary], count_tokens: Callable[[str], int], categories: Sequence[CategorySummary] = ()
) -> str:
    """Name the servers, or the categories of a large catalogue, in alphabetical order; if they are too many, those with
    the most tools. Their numbers are rounded to powers of two, so that a few tools more hardly ever change the text.

    Names come from users and from third parties. One that does not look like a name, or that contains instructions, is
    counted but not shown.
    """
    if len(categories) > 1:
        return describe_categories(categories, count_tokens)
    plain = {each.name: each.tools for each in servers if _is_plain_name(each.name)}
    return _name_largest(plain, len(servers), _format_servers, count_tokens)


def describe_categories(categories: Sequence[CategorySummary], count_tokens: Callable[[str], int]) -> str:
    plain = {each.name: each.tools for each in categories if is_plain_category(each.name)}
    return _name_largest(plain, len(categories), _format_categories, count_tokens)


def _name_largest(
    sizes: Mapping[str, int],
    total: int,
    format_names: Callable[[Sequence[str], int], str],
    count_tokens: Callable[[str], int],
) -> str:
    """Leave out names that are too long for the room that there is, and give up after a few of them."""
    chosen: list[str] = []
    text, skipped = "", 0
    for name in sorted(sizes, key=lambda name: (-sizes[name].bit_length(), name)):
        names = sorted([*chosen, name], key=lambda name: (name.casefold(), name))
        longer = format_names(names, total - len(names))
        if max(count_tokens(longer), len(longer.encode()) / _BYTES_PER_TOKEN) <= MAX_TOKENS:
            chosen, text = names, longer
        elif (skipped := skipped + 1) > _MAX_SKIPPED:
            break
    return text


def _format_categories(names: Sequence[str], others: int) -> str:
    """Names of categories contain commas."""
    more = f"; and {others} more" if others else ""
    return f"Categories: {'; '.join(names)}{more}."


def _format_servers(names: Sequence[str], others: int) -> str:
    more = f" and {others} more {'server' if others == 1 else 'servers'}" if others else ""
    return f"Tools of {', '.join(names)}{more}."


def is_plain_category(name: str) -> bool:
    """Whether each of its words looks like a name, and they give no instructions together either."""
    return all(map(_is_plain_name, name.split(", "))) and not _gives_instructions(name)


def _is_plain_name(name: str) -> bool:
    is_short = len(name.split()) <= _MAX_WORDS and len(_split_words(name)) <= _MAX_PARTS
    return is_short and _PLAIN_NAME.fullmatch(name) is not None and not _gives_instructions(name)


def _gives_instructions(name: str) -> bool:
    return bool(find_instructions({"name": name, "words": " ".join(_split_words(name))}))


def _split_words(name: str) -> list[str]:
    return _SEPARATORS.sub(" ", name).split()
