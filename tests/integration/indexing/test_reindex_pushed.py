"""Runs of pushed lists: what is embedded and written, what is kept, and what readers see meanwhile."""

import asyncio
from typing import Any

import pytest

from app.container import Container
from app.indexing.tool_vectors import ToolTexts
from tests.support.clients import TestUser, open_client
from tests.support.embedding_server import DIMENSION, FakeEmbeddingServer, embed
from tests.support.factories import ADMIN_KEY, tool
from tests.support.worker_steps import (
    Hand,
    asked,
    finished,
    holding,
    numbered,
    read_user_scope,
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


async def row_versions(container: Container, user: TestUser) -> Versions:
    """Return the transaction that wrote each row: it changes even if a row is rewritten unchanged."""
    keys = {"mcp_tools": "id", "mcp_tool_embeddings": "tool_id", "mcp_servers": "id"}
    return {
        table: await rows(
            container,
            f"SELECT {key}, xmin::text, ctid::text FROM {table} WHERE user_id = %(user)s ORDER BY {key}",
            user=user.id,
        )
        for table, key in keys.items()
    }


async def stored_vectors(container: Container, user: TestUser) -> dict[str, Any]:
    statement = "SELECT tool_name, embedding::text FROM mcp_tool_embeddings WHERE user_id = %(user)s"
    return dict(await rows(container, statement, user=user.id))


def embedded_texts(fake: FakeEmbeddingServer) -> list[str]:
    return [text for request in fake.requests for text in request]


def nonzero_counts(run: dict[str, Any]) -> dict[str, int]:
    """Return the counts that are not zero."""
    assert run["state"] == "succeeded", run
    return {name: count for name, count in run["counts"].items() if count}


async def test_the_first_push_adds_and_embeds_all_tools(carol: TestUser, fake: FakeEmbeddingServer) -> None:
    tools = [unheard("a"), unheard("b")]
    server_id = await carol.add_server()
    run = await carol.push(server_id, tools)
    assert nonzero_counts(run) == {"added": 2, "embedded": 2}
    assert run["progress"] == {"done": 2, "total": 2}
    assert len(fake.requests) == 1
    server = await server_of(carol, server_id)
    assert (server["tool_count"], server["pending_count"], server["status"]) == (2, 0, "push")
    assert all(each["embedded"] for each in (await carol.tools()).values())


async def test_an_unchanged_push_causes_no_embedding_and_no_write(
    service: Container, carol: TestUser, fake: FakeEmbeddingServer
) -> None:
    server_id = await carol.add_tools(READ, WRITE)
    before, fake.requests = await row_versions(service, carol), []
    run = await carol.push(server_id, [WRITE, READ])
    assert nonzero_counts(run) == {"unchanged": 2}
    assert fake.requests == []
    assert await row_versions(service, carol) == before


async def test_reordered_keys_are_not_a_change(service: Container, carol: TestUser, fake: FakeEmbeddingServer) -> None:
    server_id = await carol.add_tools(READ)
    before, fake.requests = await row_versions(service, carol), []
    schema = {"properties": {"at": {}, "path": {}}, "type": "object"}
    reordered = {"inputSchema": schema, "description": READ["description"], "name": "read_file"}
    assert nonzero_counts(await carol.push(server_id, [reordered])) == {"unchanged": 1}
    assert fake.requests == []
    assert await row_versions(service, carol) == before


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"größe": {"default": 1.0, "maximum": 1e300, "examples": [-0.0, 10**30]}}},
        {"type": "object", "properties": {}, "x": [None, True, "\U0001f600", "\\u0000", "\x7f", {"": ""}]},
    ],
    ids=["numbers", "texts"],
)
async def test_reindexing_stored_tools_finds_them_unchanged(
    service: Container, carol: TestUser, schema: dict[str, Any]
) -> None:
    """A definition survives the round trip through the database."""
    server_id = await carol.add_tools(tool("odd", "Ünïcödé", inputSchema=schema, annotations={}, _meta={"a": [1.5]}))
    before = await row_versions(service, carol)
    answer = await carol.http.post(f"/servers/{server_id}/reindex", params={"wait": True})
    assert nonzero_counts(answer.json()) == {"unchanged": 1}
    assert await row_versions(service, carol) == before


async def test_integers_of_any_size_in_a_schema_reach_the_model_exactly(service: Container, carol: TestUser) -> None:
    schema = {
        "type": "object",
        "properties": {"amount": {"type": "integer", "maximum": 2**256 - 1, "default": 10**25 + 1}},
    }
    await carol.add_tools(tool("send_tokens", "Sends tokens to an address", inputSchema=schema))
    answer = (
        await carol.http.post("/discover", json={"query": "send_tokens to an address", "format": "openai"})
    ).json()
    assert answer["definitions"][0]["function"]["parameters"] == schema
    assert answer["tools"][0]["tool"]["inputSchema"] == schema
    assert (await carol.tools())["send_tokens"]["input_schema"] == schema


async def test_only_a_changed_tool_is_embedded_and_written(
    service: Container, carol: TestUser, fake: FakeEmbeddingServer
) -> None:
    server_id = await carol.add_tools(READ, WRITE)
    before, fake.requests = await row_versions(service, carol), []
    changed = unheard("write_file")
    assert nonzero_counts(await carol.push(server_id, [READ, changed])) == {"changed": 1, "unchanged": 1, "embedded": 1}
    [text] = embedded_texts(fake)
    assert changed["description"] in text
    after = await row_versions(service, carol)
    for table in ("mcp_tools", "mcp_tool_embeddings"):
        assert len(set(after[table]) & set(before[table])) == 1
    assert (await carol.tools())["write_file"]["description"] == changed["description"]


async def test_a_change_outside_the_embedded_text_is_stored_without_embedding(
    carol: TestUser, fake: FakeEmbeddingServer
) -> None:
    server_id = await carol.add_tools(READ)
    fake.requests = []
    run = await carol.push(server_id, [{**READ, "annotations": {"readOnlyHint": True}}])
    assert nonzero_counts(run) == {"changed": 1}
    assert fake.requests == []
    stored = (await carol.tools())["read_file"]
    assert stored["annotations"] == {"readOnlyHint": True}
    assert stored["embedded"]


async def test_a_cached_vector_gives_the_same_search_result(carol: TestUser, fake: FakeEmbeddingServer) -> None:
    tools = [tool("get_forecast", "Weather forecast for a city."), tool("refund", "Give money back.")]
    answers = []
    for _ in range(2):
        server_id = await carol.add_tools(*tools)
        answers.append((await carol.discover("weather forecast city"))["tools"])
        await carol.http.delete(f"/servers/{server_id}")
    first, second = answers
    assert sum(tools[0]["description"] in text for text in embedded_texts(fake)) == 1, "the second time it is cached"
    assert [found["similarity"] for found in first] == [found["similarity"] for found in second]
    assert second[0]["source"] == "semantic"


async def test_force_embeds_all_tools_again(service: Container, carol: TestUser, fake: FakeEmbeddingServer) -> None:
    server_id = await carol.add_tools(READ, WRITE)
    await rows(
        service, "UPDATE mcp_tool_embeddings SET embedding = %(v)s WHERE user_id = %(u)s", u=carol.id, v=wrong_vector()
    )
    fake.requests = []
    answer = await carol.http.post(f"/servers/{server_id}/reindex", params={"wait": True, "force": True})
    assert nonzero_counts(answer.json()) == {"unchanged": 2, "embedded": 2}
    assert len(embedded_texts(fake)) == 2
    assert wrong_vector() not in (await stored_vectors(service, carol)).values()


def wrong_vector() -> str:
    """Return a vector that no text has."""
    return str([1] + [0] * (DIMENSION - 1)).replace(" ", "")


async def test_force_also_replaces_the_cached_vector(service: Container, carol: TestUser) -> None:
    new = unheard("a")
    server_id = await carol.add_tools(new, server="s")
    document = f"Tool: a. Server: s. Description: {new['description']}"
    known = ToolTexts(document, scope=await read_user_scope(service, carol)).document_hash
    forge = "UPDATE embedding_cache SET embedding = %(v)s WHERE text_hash = %(hash)s RETURNING 1"
    assert await rows(service, forge, v=wrong_vector(), hash=known)
    await carol.push(server_id, [new], force=True)
    assert (await carol.http.delete(f"/servers/{server_id}")).status_code == 204
    run = await carol.push(await carol.add_server("s"), [new])
    assert nonzero_counts(run) == {"added": 1}, "the vector comes from the cache"
    assert wrong_vector() not in (await stored_vectors(service, carol)).values()


async def test_the_stored_vector_is_computed_from_the_embedded_text(service: Container, carol: TestUser) -> None:
    await carol.add_tools(WRITE, server="disk")
    [(similarity,)] = await rows(
        service,
        "SELECT 1 - (embedding <=> %(v)s::halfvec) FROM mcp_tool_embeddings WHERE user_id = %(u)s",
        u=carol.id,
        v=str(embed("Tool: write file. Server: disk. Description: Write a file to disk.")),
    )
    assert similarity == pytest.approx(1, abs=1e-3)


async def test_a_users_switch_tags_and_pin_survive_a_reindex(carol: TestUser) -> None:
    server_id = await carol.add_tools(READ, WRITE, tags=["disk"])
    key = (await carol.tools())["write_file"]["id"]
    settings = {"enabled": False, "tags": ["danger"], "pinned": True}
    await carol.http.patch(f"/tools/{key}", json=settings)
    await carol.push(server_id, [READ, {**WRITE, "description": "Overwrite a file on disk."}])
    await carol.push(server_id, [READ, {**WRITE, "description": "Overwrite a file on disk."}], force=True)
    after = (await carol.tools())["write_file"]
    assert after["description"] == "Overwrite a file on disk."
    assert {name: after[name] for name in settings} == {**settings, "tags": ["danger", "disk"]}
    assert after["own_tags"] == ["danger"]
    found = await carol.discover("overwrite a file on disk", similarity_threshold=0)
    assert [each["tool"]["name"] for each in found["tools"]] == ["read_file"]


async def test_a_tool_disabled_during_a_run_stays_disabled(
    hand: Hand, alice: TestUser, fake: FakeEmbeddingServer
) -> None:
    server_id = await alice.add_server()
    await send(alice, server_id, [WRITE])
    await hand.perform()
    key = (await alice.tools())["write_file"]["id"]
    await send(alice, server_id, [unheard("write_file")])
    fake.mode, fake.requests = "hang", []
    running = asyncio.create_task(hand.perform())
    await asked(fake)
    await alice.http.patch(f"/tools/{key}", json={"enabled": False})
    fake.release()
    await running
    assert (await alice.discover("write_file", strategy="bm25"))["tools"] == []


async def test_a_disabled_server_stays_hidden_after_a_reindex(carol: TestUser) -> None:
    server_id = await carol.add_tools(READ)
    await carol.http.patch(f"/servers/{server_id}", json={"enabled": False})
    await carol.push(server_id, [READ, WRITE])
    assert (await carol.discover("read_file", strategy="bm25"))["tools"] == []
    await carol.http.patch(f"/servers/{server_id}", json={"enabled": True})
    assert (await carol.discover("read_file", strategy="bm25"))["tools"][0]["tool"]["name"] == "read_file"


async def test_a_removed_tool_is_not_found_any_more_and_its_siblings_are(service: Container, carol: TestUser) -> None:
    server_id = await carol.add_tools(READ, WRITE)
    assert nonzero_counts(await carol.push(server_id, [READ])) == {"unchanged": 1, "removed": 1}
    assert set(await carol.tools()) == set(await stored_vectors(service, carol)) == {"read_file"}
    assert (await server_of(carol, server_id))["tool_count"] == 1
    assert (await carol.discover("write_file", strategy="bm25"))["total_searched"] == 1


async def test_a_tool_that_is_removed_and_returns_keeps_its_id(carol: TestUser) -> None:
    server_id = await carol.add_tools(READ, WRITE)
    key = (await carol.tools())["write_file"]["id"]
    await carol.push(server_id, [READ])
    assert (await carol.http.get(f"/tools/{key}")).status_code == 404
    assert nonzero_counts(await carol.push(server_id, [READ, WRITE])) == {"added": 1, "unchanged": 1}
    assert (await carol.http.get(f"/tools/{key}")).json()["name"] == "write_file"


async def test_a_renamed_server_is_indexed_with_its_new_name(
    service: Container, carol: TestUser, fake: FakeEmbeddingServer
) -> None:
    server_id = await carol.add_tools(unheard("a"), server="old")
    fake.requests = []
    await carol.http.patch(f"/servers/{server_id}", json={"name": "brand-new"})
    answer = await carol.http.post(f"/servers/{server_id}/reindex", params={"wait": True})
    assert answer.json()["counts"]["unchanged"] == 1
    assert any("Server: brand new." in text for text in embedded_texts(fake))
    [(name,)] = await rows(service, "SELECT server_name FROM mcp_tool_embeddings WHERE user_id = %(u)s", u=carol.id)
    assert name == "brand-new"


async def test_a_server_renamed_during_a_run_is_indexed_with_its_new_name(
    hand: Hand, alice: TestUser, fake: FakeEmbeddingServer
) -> None:
    server_id = await alice.add_server("old")
    await send(alice, server_id, [unheard("a")])
    fake.mode = "hang"
    running = asyncio.create_task(hand.perform())
    await asked(fake)
    assert (await alice.http.patch(f"/servers/{server_id}", json={"name": "brand-new"})).status_code == 200
    fake.mode = "ok"
    fake.release()
    await running
    statement = "SELECT server_name FROM mcp_tool_embeddings WHERE user_id = %(u)s"
    assert await rows(hand.container, statement, u=alice.id) == [("brand-new",)]
    assert ["Server: brand new." in text for text in embedded_texts(fake)] == [False, True]


async def test_an_empty_list_is_refused_without_force_and_the_old_index_is_kept(
    service: Container, carol: TestUser
) -> None:
    server_id = await carol.add_tools(READ)
    before = await row_versions(service, carol)
    run = await carol.push(server_id, [])
    assert (run["state"], run["error"]["cause"]) == ("failed", "empty_listing")
    after = await row_versions(service, carol)
    assert all(after[table] == before[table] for table in ("mcp_tools", "mcp_tool_embeddings"))
    assert nonzero_counts(await carol.push(server_id, [], force=True)) == {"removed": 1}
    assert await carol.tools() == {}


async def test_a_list_of_only_invalid_tools_counts_as_empty(carol: TestUser) -> None:
    server_id = await carol.add_tools(READ)
    run = await carol.push(server_id, [7, {"name": ""}])
    assert (run["state"], run["error"]["cause"]) == ("failed", "empty_listing")
    assert run["counts"]["refused"] == len(run["refused"]) == 2
    assert set(await carol.tools()) == {"read_file"}


async def test_invalid_tools_are_refused_and_reported_in_the_run(carol: TestUser) -> None:
    server_id = await carol.add_server()
    run = await carol.push(server_id, [READ, {"name": "bad", "inputSchema": 7}, READ])
    assert nonzero_counts(run) == {"added": 1, "refused": 1, **({"embedded": 1} if run["counts"]["embedded"] else {})}
    assert run["refused"] == [{"name": "bad", "reason": "`inputSchema` must be an object"}]
    [warning] = run["warnings"]
    assert "'read_file'" in warning


async def test_an_empty_server_can_be_reindexed(carol: TestUser) -> None:
    server_id = await carol.add_server()
    answer = await carol.http.post(f"/servers/{server_id}/reindex", params={"wait": True})
    assert nonzero_counts(answer.json()) == {}


async def test_a_tool_without_output_schema_and_annotations_is_returned_without_them(carol: TestUser) -> None:
    """`null` is not a JSON schema: clients that validate definitions would refuse the tool."""
    whole = tool("whole", "Has it all.", outputSchema={"type": "object"}, annotations={"readOnlyHint": True})
    await carol.add_tools(tool("bare", "Has nothing."), whole)
    answer = await carol.discover("bare whole", strategy="bm25")
    shown = {each["tool"]["name"]: each["tool"] for each in answer["tools"]}
    assert shown["bare"].keys() == {"name", "description", "inputSchema"}
    assert shown["whole"]["outputSchema"] == {"type": "object"}
    assert shown["whole"]["annotations"] == {"readOnlyHint": True}


async def test_progress_increases_while_a_long_list_is_embedded(carol: TestUser, fake: FakeEmbeddingServer) -> None:
    fake.mode = "hang"
    server_id = await carol.add_server()
    note = unheard("a")["description"]
    accepted = await send(carol, server_id, numbered(400, note))
    seen: list[dict[str, int]] = []
    for batch in range(1, 5):
        await asked(fake, times=batch)  # the progress of the previous batch has been stored
        seen.append((await carol.http.get(f"/runs/{accepted['id']}")).json()["progress"])
        fake.mode = "hang" if batch < 4 else "ok"
        fake.release()
    run = await finished(carol, accepted["id"])
    assert nonzero_counts(run) == {"added": 400, "embedded": 400}
    assert [len(request) for request in fake.requests] == [128, 128, 128, 16]
    assert [progress["done"] for progress in seen] == [0, 128, 256, 384]
    assert run["progress"] == {"done": 400, "total": 400}


async def test_only_tools_that_are_not_cached_are_embedded(carol: TestUser, fake: FakeEmbeddingServer) -> None:
    note = unheard("a")["description"]
    await carol.http.delete(f"/servers/{await carol.add_tools(*numbered(200, note))}")
    fake.requests = []
    await carol.add_tools(*numbered(205, note))
    assert [len(request) for request in fake.requests] == [5]


def generation(number: int, size: int = 20) -> list[dict[str, Any]]:
    """Return tools of which some names exist in all generations, and others in one."""
    return [
        tool(f"tool_{each:02}" if each % 2 else f"tool_{each:02}_of_{number}", f"Generation {number}")
        for each in range(size)
    ]


def seen_generations(tools: list[dict[str, Any]]) -> set[str]:
    return {each["description"] for each in tools}


async def test_readers_see_either_the_old_list_or_the_new_one(carol: TestUser) -> None:
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

        async def have_both_read(before: tuple[int, int] = read) -> bool:
            return len(listed) > before[0] and len(discovered) > before[1]

        await until(have_both_read)
    pushing = False
    await asyncio.gather(*readers)
    for answers in (listed, discovered):
        assert {len(tools) for tools in answers} == {20}
        assert {len(seen_generations(tools)) for tools in answers} == {1}
        assert len({frozenset(seen_generations(tools)) for tools in answers}) > 2


async def test_a_discovery_during_a_run_sees_one_generation(container: Container, user: TestUser) -> None:
    """The discovery is blocked after its search, at the core tools, until the new list has been applied."""
    server_id = await user.add_tools(*generation(1))
    async with holding(container, "LOCK TABLE core_tools IN ACCESS EXCLUSIVE MODE") as blocker:
        discovery = asyncio.create_task(user.discover("generation tool", limit=50, similarity_threshold=0))
        await waiting(blocker, 1)
        await user.push(server_id, generation(2))
    answer = await discovery
    tools = [each["tool"] for each in answer["tools"]]
    assert len(tools) == answer["total_searched"] == 20
    assert len(seen_generations(tools)) == 1


async def test_two_servers_indexed_at_the_same_time_are_both_counted(hand: Hand, alice: TestUser) -> None:
    """Both runs write their tools before either can update the user's count, which decides how to search."""
    await send(alice, await alice.add_server("one"), numbered(3))
    await send(alice, await alice.add_server("two"), numbered(4))
    async with holding(hand.container, "SELECT FROM users WHERE id = %s FOR UPDATE", alice.id) as blocker:
        runs = [asyncio.create_task(hand.perform()) for _ in range(2)]
        await waiting(blocker, 2)
    await asyncio.gather(*runs)
    async with open_client(hand.container, Authorization=f"Bearer {ADMIN_KEY}") as admin:
        assert (await admin.get(f"/users/{alice.id}")).json()["tool_count"] == 7
