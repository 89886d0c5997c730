"""From outcomes to priors in the rows that a search reads, and from there to the order of an answer."""

from collections.abc import AsyncIterator

import pytest

from app.container import Container
from app.usage.counters import UsageCounters
from app.usage.learning import STEP
from app.usage.prior import ENOUGH, PRIOR_MOST
from tests.conftest import TestUser, new_user, tool
from tests.support.usage import live_through

FORECAST = tool("get_forecast", "Weather forecast for a city over the next days.")
REFUND = tool("refund_payment", "Give a customer their money back.")
ASKED = "what will the weather in the city be like?"


@pytest.fixture
async def user(container: Container) -> AsyncIterator[TestUser]:
    """With the same tool on two servers, and one that is about something else."""
    async with new_user(container) as made:
        await made.add_tools(FORECAST, REFUND, server="north")
        await made.add_tools(FORECAST, server="south")
        yield made


async def key_of(user: TestUser, server: str, name: str = "get_forecast") -> str:
    listed = (await user.http.get("/tools", params={"name": name})).json()["items"]
    [key] = [each["id"] for each in listed if each["server_name"] == server]
    return str(key)


async def priors(container: Container, user: TestUser) -> dict[str, float]:
    """Of the tools that have one."""
    statement = "SELECT tool_id, prior FROM mcp_tool_embeddings WHERE user_id = %(user_id)s AND prior <> 0"
    async with container.database.transaction(user.id) as session:
        return dict(await session.rows(statement, {"user_id": user.id}))


async def order(user: TestUser) -> list[str]:
    """The tools' keys."""
    found = await user.discover(ASKED, similarity_threshold=0)
    return [each["tool_key"] for each in found["tools"]]


async def test_of_two_tools_that_fit_alike_the_one_that_went_well_comes_first(
    container: Container, user: TestUser
) -> None:
    first, second, third = await order(user)
    assert third == await key_of(user, "north", "refund_payment")
    await live_through(container, user.id, second, *[True] * ENOUGH)
    assert await order(user) == [second, first, third]
    found = await user.discover(ASKED, similarity_threshold=0, explain=True)
    assert 0.8 * PRIOR_MOST < found["tools"][0]["explanation"]["prior"] <= PRIOR_MOST
    assert found["tools"][1]["explanation"]["prior"] == 0


async def test_however_well_it_went_a_tool_about_something_else_stays_behind(
    container: Container, user: TestUser
) -> None:
    before = await order(user)
    await live_through(container, user.id, before[-1], *[True] * 500)
    assert await order(user) == before
    assert (await priors(container, user)).keys() == {before[-1]}


async def test_nothing_is_learnt_before_there_is_enough(container: Container, user: TestUser) -> None:
    key = await key_of(user, "south")
    await live_through(container, user.id, key, *[True] * (ENOUGH - 1))
    assert await priors(container, user) == {}
    await live_through(container, user.id, await key_of(user, "north"), False)
    assert (await priors(container, user)).keys() == {key}


async def test_what_is_known_is_learnt_with_every_thirtieth_write(container: Container, user: TestUser) -> None:
    key, usage_counters = await key_of(user, "south"), UsageCounters(container.database)
    for _ in range(ENOUGH):
        usage_counters.called(user.id, key, succeeded=True)
    for _ in range(29):
        await usage_counters.flusher.turn()
    assert await priors(container, user) == {}
    await usage_counters.flusher.turn()
    assert (await priors(container, user)).keys() == {key}


async def test_a_tool_that_disappoints_loses_what_it_gained(container: Container, user: TestUser) -> None:
    key = await key_of(user, "south")
    await live_through(container, user.id, key, *[True] * ENOUGH)
    assert (await priors(container, user)).keys() == {key}
    for _ in range(ENOUGH):
        discovery_id = (await user.discover(ASKED))["discovery_id"]
        body = {"discovery_id": discovery_id, "tool_key": key, "outcome": "irrelevant"}
        assert (await user.http.post("/feedback", json=body)).status_code == 204
    await container.usage_counters.learn()
    assert await priors(container, user) == {}


async def test_a_row_is_not_rewritten_for_next_to_nothing(container: Container, user: TestUser) -> None:
    async def version() -> object:
        statement = "SELECT xmin::text FROM mcp_tool_embeddings WHERE user_id = %(user_id)s AND tool_id = %(key)s"
        async with container.database.transaction(user.id) as session:
            [(xmin,)] = await session.rows(statement, {"user_id": user.id, "key": key})
        return xmin

    key = await key_of(user, "south")
    await live_through(container, user.id, key, *[True] * 200)
    before = await version()
    [learnt] = (await priors(container, user)).values()
    await live_through(container, user.id, key, True)
    assert await version() == before
    await live_through(container, user.id, key, *[False] * 20)
    assert await version() != before
    [lowered] = (await priors(container, user)).values()
    assert lowered < learnt - STEP


async def test_reindexing_keeps_what_was_learnt(container: Container, user: TestUser) -> None:
    server_id = await user.add_tools(FORECAST, REFUND, server="third")
    key = await key_of(user, "third")
    await live_through(container, user.id, key, *[True] * ENOUGH)
    learnt = await priors(container, user)
    assert learnt.keys() == {key}
    changed = tool("get_forecast", "Weather forecast for a city, now by the hour.")
    for listed in ([FORECAST, REFUND], [changed, REFUND], [FORECAST]):
        await user.push(server_id, listed)
        assert await priors(container, user) == learnt
    await user.push(server_id, [FORECAST], force=True)
    assert await priors(container, user) == learnt
    await user.push(server_id, [REFUND])
    assert await priors(container, user) == {}
    await user.push(server_id, [FORECAST, REFUND])
    assert await priors(container, user) == learnt


async def test_every_model_has_what_was_learnt(container: Container, user: TestUser) -> None:
    columns = "tool_id, server_id, server_name, tool_name, lexical, tokens, enabled, tags"
    key = await key_of(user, "south")
    async with container.database.transaction(user.id) as session:
        await session.rows(
            f"INSERT INTO mcp_tool_embeddings (user_id, model, {columns})"
            f" SELECT user_id, 'another', {columns} FROM mcp_tool_embeddings WHERE user_id = %(user_id)s",
            {"user_id": user.id},
        )
    await live_through(container, user.id, key, *[True] * ENOUGH)
    async with container.database.transaction(user.id) as session:
        rows = await session.rows("SELECT model, tool_id FROM mcp_tool_embeddings WHERE prior > 0")
    assert set(rows) == {("another", key), (container.model.id, key)}
