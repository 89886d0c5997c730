"""The rows of the table: who is asked what, by how many clients."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.load.catalogue import USER
from bench.load.results import EMPTY
from bench.load.servers import Server, Servers
from bench.load.traffic import (
    MESSAGE,
    TWO_SUBQUERIES,
    NewQuestions,
    Once,
    Repeated,
    Traffic,
    authorize,
    call_mcp_tool,
    discover,
    post,
)

CACHED = "discover, cached question"
NEW = "discover, new questions"
OVER_MCP = "discover over MCP, cached"
OVER_OLDER_MCP = "discover over MCP, older protocol"
COLD = "discover, first request of a user"
USERS = 16
"""The users of the rows with several users: `user-0` to `user-15`. Those after them are cold."""


@dataclass(frozen=True)
class Contestant:
    name: str
    clients: int
    server: Server
    next_traffic: Callable[[], Traffic]
    """The traffic of the next slice: new questions and cold users are used up."""
    is_cold: bool = False
    """Whether a slice is one request of each of some users, however long it takes, without warming up."""


@dataclass(frozen=True)
class Population:
    """The users that were created, and the key that acts for each of them."""

    key: str
    users: int
    large: dict[str, int]
    cold_per_round: int


def list_contestants(servers: Servers, population: Population) -> Iterator[Contestant]:
    numbers = itertools.count(1, 100_000)
    for clients in (1, 16):
        yield Contestant(EMPTY, clients, servers.reference, _repeat(_search("/empty")))
        yield Contestant("one pgvector query", clients, servers.reference, _repeat(_search("/search")))
        yield from _list_peers(servers, clients, numbers)
        yield from _list_own(servers.toolscout, population, clients, numbers)
    yield from _list_users(servers.toolscout, population, numbers)


def _list_peers(servers: Servers, clients: int, numbers: Iterator[int]) -> Iterator[Contestant]:
    if servers.fastmcp is not None:
        search = call_mcp_tool("/mcp", "search_tools", {"query": MESSAGE}, {})
        yield Contestant("FastMCP, by words", clients, servers.fastmcp, _repeat(search))
    if servers.toolrank is not None:
        yield Contestant("toolrank, cached question", clients, servers.toolrank, _repeat(_search("/v1/search", k=8)))
        body = '{"query": "QUESTION", "k": 8}'
        new = _ask_anew("/v1/search", body, [{}], numbers)
        yield Contestant("toolrank, new questions", clients, servers.toolrank, new)


def _list_own(server: Server, population: Population, clients: int, numbers: Iterator[int]) -> Iterator[Contestant]:
    headers = authorize(population.key, USER)
    arguments = {"query": [MESSAGE]}
    yield Contestant(CACHED, clients, server, _repeat(discover(MESSAGE, headers)))
    yield Contestant(NEW, clients, server, _ask_anew("/discover", '{"query": "QUESTION"}', [headers], numbers))
    yield Contestant("discover, two subqueries, cached", clients, server, _repeat(discover(TWO_SUBQUERIES, headers)))
    modern, older = (
        call_mcp_tool("/mcp", "tool_discovery", arguments, headers, older=is_older) for is_older in (False, True)
    )
    yield Contestant(OVER_MCP, clients, server, _repeat(modern))
    yield Contestant(OVER_OLDER_MCP, clients, server, _repeat(older))
    for user, tools in population.large.items():
        request = discover(MESSAGE, authorize(population.key, user))
        yield Contestant(f"discover, cached, {tools:,} tools", clients, server, _repeat(request))


def _list_users(server: Server, population: Population, numbers: Iterator[int]) -> Iterator[Contestant]:
    headers = [authorize(population.key, f"user-{number}") for number in range(USERS)]
    cached = _repeat(*(discover(MESSAGE, each) for each in headers))
    yield Contestant(f"discover, cached, {USERS} users", USERS, server, cached)
    new = _ask_anew("/discover", '{"query": "QUESTION"}', headers, numbers)
    yield Contestant(f"discover, new questions, {USERS} users", USERS, server, new)
    yield Contestant(COLD, 1, server, _visit_cold_users(population), is_cold=True)


def _repeat(*requests: bytes) -> Callable[[], Traffic]:
    return lambda: Repeated(requests)


def _ask_anew(path: str, body: str, headers: Sequence[dict[str, str]], numbers: Iterator[int]) -> Callable[[], Traffic]:
    return lambda: NewQuestions(path, body, headers, next(numbers))


def _visit_cold_users(population: Population) -> Callable[[], Traffic]:
    first = itertools.count(USERS, population.cold_per_round)

    def visit_next() -> Traffic:
        start = next(first)
        users = range(start, min(start + population.cold_per_round, population.users))
        return Once([discover(MESSAGE, authorize(population.key, f"user-{number}")) for number in users])

    return visit_next


def _search(path: str, **options: int) -> bytes:
    return post(path, {"query": MESSAGE, **options}, {})
