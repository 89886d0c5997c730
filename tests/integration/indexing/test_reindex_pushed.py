"""What a run costs, what it leaves alone, and what readers see meanwhile."""

import asyncio
from typing import Any

import pytest

from app.container import Container
from app.indexing.documents import text_hash
from tests.support.clients import TestUser, open_client
from tests.support.embedding_server import DIMENSION, FakeEmbeddingServer, embed
from tests.support.factories import ADMIN_KEY, tool
from tests.support.worker_steps import (
    Hand,
    asked,
    finished,
    holding,
    numbered,
    rows,
    send,
    server_of,
    unheard,
    until,
    waiting,
)

READ = tool("read_file", "Read a file from disk.", inputSchema={"type": "object", "properties": {"path": {}, "at": {}}})
WRITE = tool("write_file", "Write a file to disk.")

Versions = dict[str, list[tuple[Any, ...]]]


async def versions(container: Container, user: TestUser) -> Versions:
    """Which transaction wrote each row: a row that was written again, even unchanged, has another."""
    keys = {"mcp_tools": "id", "mcp_tool_embeddings": "tool_id", "mcp_servers": "id"}
    return {
        table: await rows(
            container,
            f"SELECT {key}, xmin::text, ctid::text FROM {table} WHERE user_id = %(user)s ORDER BY {key}",
            user=user.id,
        )
        for table, key in keys.items()
    }


async def vectors(container: Container, user: TestUser) -> dict[str, Any]:
    statement = "SELECT tool_name, embedding::text FROM mcp_tool_embeddings WHERE user_id = %(user)s"
    return dict(await rows(container, statement, user=user.id))


def texts(fake: FakeEmbeddingServer) -> list[str]:
    return [text for request in fake.requests for text in request]


def counts(run: dict[str, Any]) -> dict[str, int]:
    """Those that are not zero."""
    assert run["state"] == "succeeded", run
    return {name: count for name, count in run["counts"].items() if count}


async def test_the_first_push_adds_and_embeds_everything(carol: TestUser, fake: FakeEmbeddingServer) -> None:
    tools = [unheard("a"), unheard("b")]
    server_id = await carol.add_server()
    run = await carol.push(server_id, tools)
    assert counts(run) == {"added": 2, "embedded": 2}
    assert run["progress"] == {"done": 2, "total": 2}
    assert len(fake.requests) == 1
    server = await server_of(carol, server_id)
    assert (server["tool_count"], server["pending_count"], server["status"]) == (2, 0, "connected")
    assert all(each["embedded"] for each in (await carol.tools()).values())


async def test_an_unchanged_push_asks_for_no_vector_and_writes_no_row(
    service: Container, carol: TestUser, fake: FakeEmbeddingServer
) -> None:
    server_id = await carol.add_tools(READ, WRITE)
    before, fake.requests = await versions(service, carol), []
    run = await carol.push(server_id, [WRITE, READ])
    assert counts(run) == {"unchanged": 2}
    assert fake.requests == []
    assert await versions(service, carol) == before


async def test_a_reordered_key_is_no_change(service: Container, carol: TestUser, fake: FakeEmbeddingServer) -> None:
    server_id = await carol.add_tools(READ)
    before, fake.requests = await versions(service, carol), []
    schema = {"properties": {"at": {}, "path": {}}, "type": "object"}
    reordered = {"inputSchema": schema, "description": READ["description"], "name": "read_file"}
    assert counts(await carol.push(server_id, [reordered])) == {"unchanged": 1}
    assert fake.requests == []
    assert await versions(service, carol) == before


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"größe": {"default": 1.0, "maximum": 1e300, "examples": [-0.0, 10**30]}}},
        {"type": "object", "properties": {}, "x": [None, True, "\U0001f600", "\\u0000", "\x7f", {"": ""}]},
    ],
    ids=["numbers", "texts"],
)
async def test_reindexing_what_is_stored_finds_it_unchanged(
    service: Container, carol: TestUser, schema: dict[str, Any]
) -> None:
    """Whatever way through the database the definition has taken."""
    server_id = await carol.add_tools(tool("odd", "Ünïcödé", inputSchema=schema, annotations={}, _meta={"a": [1.5]}))
    before = await versions(service, carol)
    answer = await carol.http.post(f"/servers/{server_id}/reindex", params={"wait": True})
    assert counts(answer.json()) == {"unchanged": 1}
    assert await versions(service, carol) == before


async def test_only_the_changed_tool_is_embedded_and_written_again(
    service: Container, carol: TestUser, fake: FakeEmbeddingServer
) -> None:
    server_id = await carol.add_tools(READ, WRITE)
    before, fake.requests = await versions(service, carol), []
    changed = unheard("write_file")
    assert counts(await carol.push(server_id, [READ, changed])) == {"changed": 1, "unchanged": 1, "embedded": 1}
    [text] = texts(fake)
    assert changed["description"] in text
    after = await versions(service, carol)
    for table in ("mcp_tools", "mcp_tool_embeddings"):
        assert len(set(after[table]) & set(before[table])) == 1
    assert (await carol.tools())["write_file"]["description"] == changed["description"]


async def test_a_change_that_is_not_embedded_is_stored_but_costs_no_vector(
    carol: TestUser, fake: FakeEmbeddingServer
) -> None:
    server_id = await carol.add_tools(READ)
    fake.requests = []
    run = await carol.push(server_id, [{**READ, "annotations": {"readOnlyHint": True}}])
    assert counts(run) == {"changed": 1}
    assert fake.requests == []
    stored = (await carol.tools())["read_file"]
    assert stored["annotations"] == {"readOnlyHint": True}
    assert stored["embedded"]


async def test_the_same_server_of_a_second_user_costs_no_vector(
    service: Container, carol: TestUser, dave: TestUser, fake: FakeEmbeddingServer
) -> None:
    tools = [unheard("a"), unheard("b")]
    await carol.add_tools(*tools, server="github")
    fake.requests = []
    await dave.add_tools(*tools, server="github")
    assert fake.requests == []
    assert all(each["embedded"] for each in (await dave.tools()).values())
    assert await vectors(service, dave) == await vectors(service, carol)


async def test_a_vector_from_the_cache_finds_the_tool_as_well(carol: TestUser, dave: TestUser) -> None:
    weather = tool("get_forecast", "Weather forecast for a city.")
    for user in (carol, dave):
        await user.add_tools(weather, tool("refund", "Give money back."))
    first, second = [await user.discover("weather forecast city") for user in (carol, dave)]
    assert [found["similarity"] for found in first["tools"]] == [found["similarity"] for found in second["tools"]]
    assert second["tools"][0]["source"] == "semantic"


async def test_by_force_everything_is_embedded_anew(
    service: Container, carol: TestUser, fake: FakeEmbeddingServer
) -> None:
    server_id = await carol.add_tools(READ, WRITE)
    await rows(service, "UPDATE mcp_tool_embeddings SET embedding = %(v)s WHERE user_id = %(u)s", u=carol.id, v=wrong())
    fake.requests = []
    answer = await carol.http.post(f"/servers/{server_id}/reindex", params={"wait": True, "force": True})
    assert counts(answer.json()) == {"unchanged": 2, "embedded": 2}
    assert len(texts(fake)) == 2
    assert wrong() not in (await vectors(service, carol)).values()


def wrong() -> str:
    """A vector that no text has."""
    return str([1] + [0] * (DIMENSION - 1)).replace(" ", "")


async def test_what_was_embedded_by_force_is_what_others_get_from_the_cache(
    service: Container, carol: TestUser, dave: TestUser
) -> None:
    new = unheard("a")
    server_id = await carol.add_tools(new, server="s")
    known = text_hash(f"Tool: a. Server: s. Description: {new['description']}")
    forge = "UPDATE embedding_cache SET embedding = %(v)s WHERE text_hash = %(hash)s RETURNING 1"
    assert await rows(service, forge, v=wrong(), hash=known)
    await carol.push(server_id, [new], force=True)
    await dave.add_tools(new, server="s")
    assert await vectors(service, dave) == await vectors(service, carol)


async def test_the_stored_vector_is_that_of_the_enriched_text(service: Container, carol: TestUser) -> None:
    await carol.add_tools(WRITE, server="disk")
    [(similarity,)] = await rows(
        service,
        "SELECT 1 - (embedding <=> %(v)s::halfvec) FROM mcp_tool_embeddings WHERE user_id = %(u)s",
        u=carol.id,
        v=str(embed("Tool: write file. Server: disk. Description: Write a file to disk.")),
    )
    assert similarity == pytest.approx(1, abs=1e-3)


async def test_a_persons_switch_tags_and_pin_survive_a_reindex(carol: TestUser) -> None:
    server_id = await carol.add_tools(READ, WRITE, tags=["disk"])
    key = (await carol.tools())["write_file"]["id"]
    mine = {"enabled": False, "tags": ["danger"], "pinned": True}
    await carol.http.patch(f"/tools/{key}", json=mine)
    await carol.push(server_id, [READ, {**WRITE, "description": "Overwrite a file on disk."}])
    await carol.push(server_id, [READ, {**WRITE, "description": "Overwrite a file on disk."}], force=True)
    after = (await carol.tools())["write_file"]
    assert after["description"] == "Overwrite a file on disk."
    assert {name: after[name] for name in mine} == {**mine, "tags": ["danger", "disk"]}
    assert after["own_tags"] == ["danger"]
    found = await carol.discover("overwrite a file on disk", similarity_threshold=0)
    assert [each["tool"]["name"] for each in found["tools"]] == ["read_file"]


async def test_a_switch_turned_while_a_run_is_under_way_holds(
    hand: Hand, alice: TestUser, fake: FakeEmbeddingServer
) -> None:
    server_id = await alice.add_server()
    await send(alice, server_id, [WRITE])
    await hand.perform()
    key = (await alice.tools())["write_file"]["id"]
    await send(alice, server_id, [unheard("write_file")])
    fake.mode, fake.requests = "hang", []
    underway = asyncio.create_task(hand.perform())
    await asked(fake)
    await alice.http.patch(f"/tools/{key}", json={"enabled": False})
    fake.release()
    await underway
    assert (await alice.discover("write_file", strategy="bm25"))["tools"] == []


async def test_a_disabled_server_stays_hidden_through_a_reindex(carol: TestUser) -> None:
    server_id = await carol.add_tools(READ)
    await carol.http.patch(f"/servers/{server_id}", json={"enabled": False})
    await carol.push(server_id, [READ, WRITE])
    assert (await carol.discover("read_file", strategy="bm25"))["tools"] == []
    await carol.http.patch(f"/servers/{server_id}", json={"enabled": True})
    assert (await carol.discover("read_file", strategy="bm25"))["tools"][0]["tool"]["name"] == "read_file"


async def test_a_removed_tool_is_gone_from_every_table_and_its_siblings_stay(
    service: Container, carol: TestUser
) -> None:
    server_id = await carol.add_tools(READ, WRITE)
    assert counts(await carol.push(server_id, [READ])) == {"unchanged": 1, "removed": 1}
    assert set(await carol.tools()) == set(await vectors(service, carol)) == {"read_file"}
    assert (await server_of(carol, server_id))["tool_count"] == 1
    assert (await carol.discover("write_file", strategy="bm25"))["total_searched"] == 1


async def test_a_tool_that_vanishes_and_returns_keeps_its_key(carol: TestUser) -> None:
    server_id = await carol.add_tools(READ, WRITE)
    key = (await carol.tools())["write_file"]["id"]
    await carol.push(server_id, [READ])
    assert (await carol.http.get(f"/tools/{key}")).status_code == 404
    assert counts(await carol.push(server_id, [READ, WRITE])) == {"added": 1, "unchanged": 1}
    assert (await carol.http.get(f"/tools/{key}")).json()["name"] == "write_file"


async def test_a_renamed_server_is_indexed_under_its_new_name(
    service: Container, carol: TestUser, fake: FakeEmbeddingServer
) -> None:
    server_id = await carol.add_tools(unheard("a"), server="old")
    fake.requests = []
    await carol.http.patch(f"/servers/{server_id}", json={"name": "brand-new"})
    answer = await carol.http.post(f"/servers/{server_id}/reindex", params={"wait": True})
    assert answer.json()["counts"]["unchanged"] == 1
    assert any("Server: brand new." in text for text in texts(fake))
    [(name,)] = await rows(service, "SELECT server_name FROM mcp_tool_embeddings WHERE user_id = %(u)s", u=carol.id)
    assert name == "brand-new"


async def test_a_server_renamed_while_its_run_is_under_way_is_indexed_under_its_new_name(
    hand: Hand, alice: TestUser, fake: FakeEmbeddingServer
) -> None:
    server_id = await alice.add_server("old")
    await send(alice, server_id, [unheard("a")])
    fake.mode = "hang"
    underway = asyncio.create_task(hand.perform())
    await asked(fake)
    assert (await alice.http.patch(f"/servers/{server_id}", json={"name": "brand-new"})).status_code == 200
    fake.mode = "ok"
    fake.release()
    await underway
    statement = "SELECT server_name FROM mcp_tool_embeddings WHERE user_id = %(u)s"
    assert await rows(hand.container, statement, u=alice.id) == [("brand-new",)]
    assert ["Server: brand new." in text for text in texts(fake)] == [False, True]


async def test_an_empty_list_is_refused_and_the_old_index_stays_unless_forced(
    service: Container, carol: TestUser
) -> None:
    server_id = await carol.add_tools(READ)
    before = await versions(service, carol)
    run = await carol.push(server_id, [])
    assert (run["state"], run["error"]["cause"]) == ("failed", "empty_listing")
    after = await versions(service, carol)
    assert all(after[table] == before[table] for table in ("mcp_tools", "mcp_tool_embeddings"))
    assert counts(await carol.push(server_id, [], force=True)) == {"removed": 1}
    assert await carol.tools() == {}


async def test_a_list_of_nothing_but_bad_tools_counts_as_empty(carol: TestUser) -> None:
    server_id = await carol.add_tools(READ)
    run = await carol.push(server_id, [7, {"name": ""}])
    assert (run["state"], run["error"]["cause"]) == ("failed", "empty_listing")
    assert run["counts"]["refused"] == len(run["refused"]) == 2
    assert set(await carol.tools()) == {"read_file"}


async def test_bad_tools_are_refused_alone_and_named_in_the_run(carol: TestUser) -> None:
    server_id = await carol.add_server()
    run = await carol.push(server_id, [READ, {"name": "bad", "inputSchema": 7}, READ])
    assert counts(run) == {"added": 1, "refused": 1, **({"embedded": 1} if run["counts"]["embedded"] else {})}
    assert run["refused"] == [{"name": "bad", "reason": "`inputSchema` must be an object"}]
    [warning] = run["warnings"]
    assert "'read_file'" in warning


async def test_an_empty_server_can_be_reindexed(carol: TestUser) -> None:
    server_id = await carol.add_server()
    answer = await carol.http.post(f"/servers/{server_id}/reindex", params={"wait": True})
    assert counts(answer.json()) == {}


async def test_a_tool_without_output_schema_and_annotations_is_shown_without_them(carol: TestUser) -> None:
    """`null` is no JSON schema: clients that check what they are given would refuse the tool."""
    whole = tool("whole", "Has it all.", outputSchema={"type": "object"}, annotations={"readOnlyHint": True})
    await carol.add_tools(tool("bare", "Has nothing."), whole)
    answer = await carol.discover("bare whole", strategy="bm25")
    shown = {each["tool"]["name"]: each["tool"] for each in answer["tools"]}
    assert shown["bare"].keys() == {"name", "description", "inputSchema"}
    assert shown["whole"]["outputSchema"] == {"type": "object"}
    assert shown["whole"]["annotations"] == {"readOnlyHint": True}


async def test_progress_rises_while_a_long_list_is_embedded(carol: TestUser, fake: FakeEmbeddingServer) -> None:
    fake.mode = "hang"
    server_id = await carol.add_server()
    note = unheard("a")["description"]
    accepted = await send(carol, server_id, numbered(400, note))
    seen: list[dict[str, int]] = []
    for batch in range(1, 5):
        await asked(fake, times=batch)  # what was embedded before has been told
        seen.append((await carol.http.get(f"/runs/{accepted['id']}")).json()["progress"])
        fake.mode = "hang" if batch < 4 else "ok"
        fake.release()
    run = await finished(carol, accepted["id"])
    assert counts(run) == {"added": 400, "embedded": 400}
    assert [len(request) for request in fake.requests] == [128, 128, 128, 16]
    assert [progress["done"] for progress in seen] == [0, 128, 256, 384]
    assert run["progress"] == {"done": 400, "total": 400}


async def test_a_list_beyond_one_batch_goes_on_where_the_cache_ends(
    carol: TestUser, dave: TestUser, fake: FakeEmbeddingServer
) -> None:
    note = unheard("a")["description"]
    await carol.add_tools(*numbered(200, note))
    fake.requests = []
    await dave.add_tools(*numbered(205, note))
    assert [len(request) for request in fake.requests] == [5]


def generation(number: int, size: int = 20) -> list[dict[str, Any]]:
    """Some names stay through all generations, others belong to one."""
    return [
        tool(f"tool_{each:02}" if each % 2 else f"tool_{each:02}_of_{number}", f"Generation {number}")
        for each in range(size)
    ]


def seen_generations(tools: list[dict[str, Any]]) -> set[str]:
    return {each["description"] for each in tools}


async def test_readers_see_the_old_list_or_the_new_one_and_never_a_mixture(carol: TestUser) -> None:
    server_id = await carol.add_tools(*generation(0))
    pushing = True
    listed: list[list[dict[str, Any]]] = []
    discovered: list[list[dict[str, Any]]] = []

    async def read_list() -> None:
        while pushing:
            listed.append((await carol.http.get("/tools", params={"limit": 200})).json()["items"])
            await asyncio.sleep(0.005)

    async def read_discovery() -> None:
        while pushing:
            answer = await carol.discover("generation tool", limit=50, similarity_threshold=0)
            discovered.append([each["tool"] for each in answer["tools"]])
            await asyncio.sleep(0.005)

    readers = [asyncio.create_task(reader()) for reader in (read_list, read_discovery)]
    for number in range(1, 5):
        await carol.push(server_id, generation(number))
        read = len(listed), len(discovered)

        async def both_have_read(before: tuple[int, int] = read) -> bool:
            return len(listed) > before[0] and len(discovered) > before[1]

        await until(both_have_read)
    pushing = False
    await asyncio.gather(*readers)
    for answers in (listed, discovered):
        assert {len(tools) for tools in answers} == {20}
        assert {len(seen_generations(tools)) for tools in answers} == {1}
        assert len({frozenset(seen_generations(tools)) for tools in answers}) > 2


async def test_a_discovery_that_a_run_overtakes_still_sees_one_generation(container: Container, user: TestUser) -> None:
    """Its reading of the core tools is held up, after the search, until the new list has been applied."""
    server_id = await user.add_tools(*generation(1))
    async with holding(container, "LOCK TABLE core_tools IN ACCESS EXCLUSIVE MODE") as blocker:
        question = asyncio.create_task(user.discover("generation tool", limit=50, similarity_threshold=0))
        await waiting(blocker, 1)
        await user.push(server_id, generation(2))
    answer = await question
    tools = [each["tool"] for each in answer["tools"]]
    assert len(tools) == answer["total_searched"] == 20
    assert len(seen_generations(tools)) == 1


async def test_two_servers_indexed_at_the_same_moment_are_both_counted(hand: Hand, alice: TestUser) -> None:
    """Both runs have written their tools before either may write the user's count, which decides how to search."""
    await send(alice, await alice.add_server("one"), numbered(3))
    await send(alice, await alice.add_server("two"), numbered(4))
    async with holding(hand.container, "SELECT FROM users WHERE id = %s FOR UPDATE", alice.id) as blocker:
        runs = [asyncio.create_task(hand.perform()) for _ in range(2)]
        await waiting(blocker, 2)
    await asyncio.gather(*runs)
    async with open_client(hand.container, Authorization=f"Bearer {ADMIN_KEY}") as admin:
        assert (await admin.get(f"/users/{alice.id}")).json()["tool_count"] == 7
