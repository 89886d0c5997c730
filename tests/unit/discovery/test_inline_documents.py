"""The cache of tools that are sent with requests."""

import tracemalloc
from collections.abc import Iterator

import pytest

from app.discovery.inline import documents
from app.discovery.inline.documents import InlineTool, InlineToolParser
from app.indexing.cache_scope import EVERYONE
from app.indexing.known_tools.matching import KnownTools
from app.limits.fair_thread import FairExecutor

LIMIT = 2_000_000


@pytest.fixture
def parser(monkeypatch: pytest.MonkeyPatch) -> Iterator[InlineToolParser]:
    monkeypatch.setattr(documents, "_MAX_CACHE_BYTES", LIMIT)
    executor = FairExecutor("inline-search")
    yield InlineToolParser(KnownTools(), executor)
    executor.close(RuntimeError("closed"))


def make_tools(request: int, count: int = 600) -> list[InlineTool]:
    return [
        InlineTool(f"{n}", f"tool_{request}_{n}", "sent", f"Finds the thing number {n} of the list {request}.")
        for n in range(count)
    ]


async def test_eleven_requests_of_600_new_tools_do_not_exceed_the_bound(parser: InlineToolParser) -> None:
    await parser.parse("warm-up", make_tools(99), 384, EVERYONE)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for request in range(11):
            await parser.parse(f"user-{request}", make_tools(request), 384, EVERYONE)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert LIMIT / 2 < parser._cache.bytes <= LIMIT
    assert grown <= 1.25 * LIMIT


async def test_a_tool_that_is_sent_again_is_parsed_once(parser: InlineToolParser) -> None:
    tools = make_tools(1, count=40)
    first = await parser.parse("alice", tools, 384, EVERYONE)
    second = await parser.parse("alice", tools, 384, EVERYONE)
    assert all(one is other for one, other in zip(first, second, strict=True))


async def test_one_users_tools_do_not_evict_those_of_another(parser: InlineToolParser) -> None:
    tools = make_tools(1, count=40)
    kept = await parser.parse("bob", tools, 384, EVERYONE)
    for request in range(3):
        await parser.parse("alice", make_tools(request), 384, EVERYONE)
    assert (await parser.parse("bob", tools, 384, EVERYONE))[0] is kept[0]
