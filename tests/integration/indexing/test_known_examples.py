"""Known tools are indexed with their examples: what is embedded, what is stored, and when it changes."""

from dataclasses import replace

import pytest
from pgvector import SparseVector

from app.container import Container
from app.indexing.known_tools.matching import KnownTool, KnownTools
from app.indexing.tool_vectors import blend_examples
from app.search.bm25 import find_matching_words
from app.search.tokenizer import split_words
from tests.support.clients import TestUser, new_user
from tests.support.embedding_server import FakeEmbeddingServer, embed
from tests.support.factories import OpenService, tool
from tests.support.flaky_embedder import Refuses
from tests.support.known_tools import document_of, measure_stored_similarity, pick_known_tools, unit_vector
from tests.support.worker_steps import Hand, rows, send, unheard

[KNOWN] = pick_known_tools(1)
LISTED = tool(KNOWN.name, KNOWN.description)


async def measure_similarity(container: Container, user: TestUser, server: str, examples: tuple[str, ...]) -> float:
    """Return how near the stored vector is to that of the known tool with these examples."""
    document, *others = (unit_vector(embed(text)) for text in (document_of(KNOWN, server), *examples))
    expected = blend_examples(document, others, container.model.calibration.unrelated)
    return await measure_stored_similarity(container, user, container.model.id, expected)


async def get_lexical(container: Container, user: TestUser) -> SparseVector:
    [(lexical,)] = await rows(container, "SELECT lexical FROM mcp_tool_embeddings WHERE user_id = %(u)s", u=user.id)
    assert isinstance(lexical, SparseVector)
    return lexical


def embedded_texts(fake: FakeEmbeddingServer) -> list[str]:
    return [text for request in fake.requests for text in request]


async def test_a_known_tool_is_stored_with_its_examples(service: Container, carol: TestUser) -> None:
    run = await carol.push(await carol.add_server("mine"), [LISTED])
    assert (run["counts"]["added"], run["counts"]["embedded"], run["warnings"]) == (1, 1, [])
    assert await measure_similarity(service, carol, "mine", KNOWN.examples) == pytest.approx(1, abs=1e-3)
    assert await measure_similarity(service, carol, "mine", ()) < 0.99
    lexical = await get_lexical(service, carol)
    assert all(
        find_matching_words(example, lexical) == list(dict.fromkeys(split_words(example))) for example in KNOWN.examples
    )
    assert (await carol.tools())[KNOWN.name]["embedded"]


async def test_a_tool_with_the_same_name_and_another_meaning_has_no_examples(
    carol: TestUser, fake: FakeEmbeddingServer
) -> None:
    await carol.add_tools(unheard(KNOWN.name))
    assert len(embedded_texts(fake)) == 1


async def test_examples_of_a_known_tool_are_embedded_once_for_all_users(
    carol: TestUser, dave: TestUser, fake: FakeEmbeddingServer
) -> None:
    await carol.add_tools(LISTED, server="one")
    fake.requests = []
    await carol.add_tools(LISTED, server="two")
    assert embedded_texts(fake) == [document_of(KNOWN, "two")]
    fake.requests = []
    await dave.add_tools(LISTED, server="two")
    assert embedded_texts(fake) == [document_of(KNOWN, "two")]


async def test_known_examples_can_be_switched_off(open_service: OpenService, fake: FakeEmbeddingServer) -> None:
    async with open_service(**fake.settings(known_examples=False)) as service, new_user(service) as user:
        await user.add_tools(LISTED, server="mine")
        assert not set(KNOWN.examples) & set(embedded_texts(fake))
        assert await measure_similarity(service, user, "mine", ()) == pytest.approx(1, abs=1e-3)


async def test_new_examples_are_indexed_at_the_next_run_for_the_tools_concerned(
    hand: Hand, alice: TestUser, fake: FakeEmbeddingServer
) -> None:
    known, other = unheard("known"), unheard("other")
    server_id = await alice.add_server()
    await send(alice, server_id, [known, other])
    await hand.perform()
    before = await read_versions(hand, alice)
    fake.requests = []
    knowing = replace(
        hand, indexer=replace(hand.indexer, known_tools=make_known(known["description"], "a first example"))
    )
    await send(alice, server_id, [known, other])
    await knowing.perform()
    assert embedded_texts(fake) == ["a first example"], "the document is cached"
    after = await read_versions(hand, alice)
    assert (after["known"] != before["known"], after["other"]) == (True, before["other"])
    await send(alice, server_id, [known, other])
    await knowing.perform()
    assert await read_versions(hand, alice) == after
    await send(alice, server_id, [known, other])
    await hand.perform()
    assert (await read_versions(hand, alice))["known"] != after["known"], "switched off again"
    assert embedded_texts(fake) == ["a first example"]


def make_known(description: str, *examples: str) -> KnownTools:
    return KnownTools([KnownTool("known", description, examples)])


async def read_versions(hand: Hand, user: TestUser) -> dict[str, tuple[str, str]]:
    """Return the transaction that wrote each search row, and the hash of its vector."""
    statement = "SELECT tool_name, xmin::text, content_hash FROM mcp_tool_embeddings WHERE user_id = %(u)s"
    return {name: (version, key) for name, version, key in await rows(hand.container, statement, u=user.id)}


async def test_an_example_that_the_embedder_refuses_is_left_out(
    hand: Hand, alice: TestUser, fake: FakeEmbeddingServer
) -> None:
    known = unheard("known")
    knowing = replace(
        hand, indexer=replace(hand.indexer, known_tools=make_known(known["description"], "fine words", "bad words"))
    )
    fake.requests = Refuses(fake, "bad words")
    run = await send(alice, await alice.add_server(), [known])
    await knowing.perform()
    state, counts, [warning] = await hand.run_row(run["id"], "state", "counts", "warnings")
    assert (state, counts["embedded"]) == ("succeeded", 1)
    assert warning == "a known example of the tool 'known' could not be embedded (no_direction)"
    assert (await alice.tools())["known"]["embedded"]


async def test_a_known_tool_waits_for_its_vector_while_the_embedder_is_down(
    hand: Hand, alice: TestUser, fake: FakeEmbeddingServer
) -> None:
    known = unheard("known")
    server_id = await alice.add_server()
    await send(alice, server_id, [known])
    await hand.perform()
    knowing = replace(
        hand, indexer=replace(hand.indexer, known_tools=make_known(known["description"], f"{known['description']} now"))
    )
    fake.mode = "status"
    await send(alice, server_id, [known])
    await knowing.perform()
    assert not (await alice.tools())["known"]["embedded"]
    fake.mode = "ok"
    await send(alice, server_id, [known])
    await knowing.perform()
    assert (await alice.tools())["known"]["embedded"]
