"""Outcomes become priors in the rows that a search reads, and priors change the order of results."""

from collections.abc import AsyncIterator

import pytest

from app.container import Container
from app.usage.counters import UsageCounters
from app.usage.priors import MAX_PRIOR, MIN_CHANGE, MIN_OUTCOMES
from tests.support.clients import TestUser, new_user
from tests.support.factories import tool
from tests.support.usage import live_through

FORECAST = tool("get_forecast", "Weather forecast for a city over the next days.")
REFUND = tool("refund_payment", "Give a customer their money back.")
QUERY = "what will the weather in the city be like?"


@pytest.fixture
async def user(container: Container) -> AsyncIterator[TestUser]:
    """A user with the same tool on two servers, and an unrelated tool."""
    async with new_user(container) as user:
        await user.add_tools(FORECAST, REFUND, server="north")
        await user.add_tools(FORECAST, server="south")
        yield user


async def get_key(user: TestUser, server: str, name: str = "get_forecast") -> str:
    listed = (await user.http.get("/tools", params={"name": name})).json()["items"]
    [key] = [each["id"] for each in listed if each["server_name"] == server]
    return str(key)


async def read_priors(container: Container, user: TestUser) -> dict[str, float]:
    """Return the priors that are not zero, by tool."""
    statement = "SELECT tool_id, prior FROM mcp_tool_embeddings WHERE user_id = %(user_id)s AND prior <> 0"
    async with container.database.transaction(user.id) as session:
        return dict(await session.rows(statement, {"user_id": user.id}))


async def discover_keys(user: TestUser) -> list[str]:
    """Return the keys of the tools in the order of the result."""
    found = await user.discover(QUERY, similarity_threshold=0)
    return [each["tool_key"] for each in found["tools"]]


async def test_of_two_equal_tools_the_successful_one_comes_first(container: Container, user: TestUser) -> None:
    first, second, third = await discover_keys(user)
    assert third == await get_key(user, "north", "refund_payment")
    await live_through(container, user.id, second, *[True] * MIN_OUTCOMES)
    assert await discover_keys(user) == [second, first, third]
    found = await user.discover(QUERY, similarity_threshold=0, explain=True)
    assert 0.8 * MAX_PRIOR < found["tools"][0]["explanation"]["prior"] <= MAX_PRIOR
    assert found["tools"][1]["explanation"]["prior"] == 0


async def test_an_unrelated_tool_stays_last_however_successful_it_is(container: Container, user: TestUser) -> None:
    before = await discover_keys(user)
    await live_through(container, user.id, before[-1], *[True] * 500)
    assert await discover_keys(user) == before
    assert (await read_priors(container, user)).keys() == {before[-1]}


async def test_there_are_no_priors_before_there_are_enough_outcomes(container: Container, user: TestUser) -> None:
    key = await get_key(user, "south")
    await live_through(container, user.id, key, *[True] * (MIN_OUTCOMES - 1))
    assert await read_priors(container, user) == {}
    await live_through(container, user.id, await get_key(user, "north"), False)
    assert (await read_priors(container, user)).keys() == {key}


async def test_priors_are_updated_with_every_thirtieth_flush(container: Container, user: TestUser) -> None:
    key, usage_counters = await get_key(user, "south"), UsageCounters(container.database)
    for _ in range(MIN_OUTCOMES):
        usage_counters.record_call(user.id, key, succeeded=True)
    for _ in range(29):
        await usage_counters.flusher.flush()
    assert await read_priors(container, user) == {}
    await usage_counters.flusher.flush()
    assert (await read_priors(container, user)).keys() == {key}


async def test_a_tool_that_becomes_irrelevant_loses_its_prior(container: Container, user: TestUser) -> None:
    key = await get_key(user, "south")
    await live_through(container, user.id, key, *[True] * MIN_OUTCOMES)
    assert (await read_priors(container, user)).keys() == {key}
    for _ in range(MIN_OUTCOMES):
        discovery_id = (await user.discover(QUERY))["discovery_id"]
        body = {"discovery_id": discovery_id, "tool_key": key, "outcome": "irrelevant"}
        assert (await user.http.post("/feedback", json=body)).status_code == 204
    await container.usage_counters.update_priors()
    assert await read_priors(container, user) == {}


async def test_a_row_is_not_rewritten_for_a_tiny_change(container: Container, user: TestUser) -> None:
    async def read_version() -> object:
        statement = "SELECT xmin::text FROM mcp_tool_embeddings WHERE user_id = %(user_id)s AND tool_id = %(key)s"
        async with container.database.transaction(user.id) as session:
            [(xmin,)] = await session.rows(statement, {"user_id": user.id, "key": key})
        return xmin

    key = await get_key(user, "south")
    await live_through(container, user.id, key, *[True] * 200)
    before = await read_version()
    [prior] = (await read_priors(container, user)).values()
    await live_through(container, user.id, key, True)
    assert await read_version() == before
    await live_through(container, user.id, key, *[False] * 20)
    assert await read_version() != before
    [lowered] = (await read_priors(container, user)).values()
    assert lowered < prior - MIN_CHANGE


async def test_reindexing_keeps_the_priors(container: Container, user: TestUser) -> None:
    server_id = await user.add_tools(FORECAST, REFUND, server="third")
    key = await get_key(user, "third")
    await live_through(container, user.id, key, *[True] * MIN_OUTCOMES)
    priors = await read_priors(container, user)
    assert priors.keys() == {key}
    changed = tool("get_forecast", "Weather forecast for a city, now by the hour.")
    for listed in ([FORECAST, REFUND], [changed, REFUND], [FORECAST]):
        await user.push(server_id, listed)
        assert await read_priors(container, user) == priors
    await user.push(server_id, [FORECAST], force=True)
    assert await read_priors(container, user) == priors
    await user.push(server_id, [REFUND])
    assert await read_priors(container, user) == {}
    await user.push(server_id, [FORECAST, REFUND])
    assert await read_priors(container, user) == priors


async def test_every_model_has_the_priors(container: Container, user: TestUser) -> None:
    columns = "tool_id, server_id, server_name, tool_name, lexical, tokens, enabled, tags"
    key = await get_key(user, "south")
    async with container.database.transaction(user.id) as session:
        await session.rows(
            f"INSERT INTO mcp_tool_embeddings (user_id, model, {columns})"
            f" SELECT user_id, 'another', {columns} FROM mcp_tool_embeddings WHERE user_id = %(user_id)s",
            {"user_id": user.id},
        )
    await live_through(container, user.id, key, *[True] * MIN_OUTCOMES)
    async with container.database.transaction(user.id) as session:
        rows = await session.rows("SELECT model, tool_id FROM mcp_tool_embeddings WHERE prior > 0")
    assert set(rows) == {("another", key), (container.model.id, key)}
