"""`explain`: the evidence for each found tool, compared with a plain computation."""

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from app.container import Container
from app.search.tokenizer import tokenize
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.worker_steps import rows

Json = dict[str, Any]

TOOLS = [
    tool("get_forecast", "Weather forecast for a city: rain, wind, rain again.", title="Forecast"),
    tool("rain_radar", "Where it rains now.", inputSchema={"type": "object", "properties": {"city": {}, "rain": {}}}),
    tool("list_cities", "All cities with a weather station."),
    tool("refund_payment", "Give a customer their money back."),
    tool("search_code", "Search code by text."),
]
MESSAGE = "weather forecast for the city: will it rain, and how much rain?"
FIELDS = {
    "cosine",
    "cosine_rank",
    "bm25",
    "bm25_rank",
    "tag_boost",
    "action_boost",
    "example_boost",
    "prior",
    "matched_words",
    "named_in_message",
}


@pytest.fixture
async def sky(user: TestUser) -> str:
    return await user.add_tools(*TOOLS, server="sky")


async def explain(user: TestUser, query: str = MESSAGE, **fields: Any) -> dict[str, Json]:
    """Return the explanations by tool name; a threshold of zero finds every tool."""
    answer = await user.discover(query, **{"explain": True, "similarity_threshold": 0, "limit": 50, **fields})
    return {hit["tool"]["name"]: hit["explanation"] for hit in answer["tools"]}


async def compute_cosines(container: Container, user: TestUser, query: str) -> dict[str, float]:
    """Return the cosines of all of the user's tools, visible or not."""
    statement = "SELECT tool_name, embedding FROM mcp_tool_embeddings WHERE user_id = %(user)s"
    query_vector = np.asarray(
        (await container.models.current.queries.embed(user.id, (query,))).vectors[0], dtype=np.float64
    )
    query_vector /= np.linalg.norm(query_vector)
    vectors = {
        name: each.to_numpy().astype(np.float64) for name, each in await rows(container, statement, user=user.id)
    }
    return {name: float(each @ query_vector / np.linalg.norm(each)) for name, each in vectors.items()}


def count_terms(each: Json, server: str) -> dict[str, float]:
    """Weigh the tool's name twice and the names of parameters half."""
    parameters = " ".join(each["inputSchema"]["properties"])
    texts = [(each["name"], 2), (each.get("title", ""), 1), (server, 1), (each["description"], 1), (parameters, 0.5)]
    counts: defaultdict[str, float] = defaultdict(float)
    for text, weight in texts:
        for term in tokenize(text):
            counts[term] += weight
    return counts


def compute_bm25(tools: list[Json], query: str, server: str = "sky") -> dict[str, float]:
    """Textbook BM25 with an average document length of fifty."""
    documents = {each["name"]: count_terms(each, server) for each in tools}
    scores = dict.fromkeys(documents, 0.0)
    for term in dict.fromkeys(tokenize(query)):
        matching = sum(term in document for document in documents.values())
        idf = math.log(1 + (len(documents) - matching + 0.5) / (matching + 0.5))
        for name, document in documents.items():
            length = sum(document.values())
            damping = 1.2 * (1 - 0.75 + 0.75 * length / 50)
            frequency = document.get(term, 0.0)
            scores[name] += idf * frequency * 2.2 / (frequency + damping)
    return scores


def compute_ranks(scores: dict[str, float]) -> dict[str, int]:
    """Break ties by name; a tool that scores nothing has no rank."""
    order = sorted(scores, key=lambda name: (-scores[name], name))
    return {name: rank for rank, name in enumerate(order, start=1) if scores[name] > 0}


async def test_every_number_equals_the_plain_computation(container: Container, user: TestUser, sky: str) -> None:
    found = await explain(user)
    assert found.keys() == {each["name"] for each in TOOLS}
    cosines, bm25 = await compute_cosines(container, user, MESSAGE), compute_bm25(TOOLS, MESSAGE)
    for name, explanation in found.items():
        assert explanation.keys() == FIELDS
        assert explanation["cosine"] == pytest.approx(cosines[name], abs=2e-3), name
        assert explanation["bm25"] == pytest.approx(bm25[name], abs=2e-3), name
        assert explanation["cosine_rank"] == compute_ranks(cosines)[name]
        assert explanation["bm25_rank"] == compute_ranks(bm25).get(name)
        assert (explanation["tag_boost"], explanation["named_in_message"]) == (0, False)
    assert found["search_code"]["bm25_rank"] is None
    assert found["get_forecast"]["bm25_rank"] == 1


async def test_matched_words_are_the_tools_words_in_the_order_of_the_message(user: TestUser, sky: str) -> None:
    found = await explain(user)
    assert found["get_forecast"]["matched_words"] == ["weather", "forecast", "city", "rain"]
    assert found["rain_radar"]["matched_words"] == ["city", "rain"]
    assert found["refund_payment"]["matched_words"] == []


async def test_an_explanation_does_not_change_the_answer(user: TestUser, sky: str) -> None:
    plain, explained = await user.discover(MESSAGE), await user.discover(MESSAGE, explain=True)
    assert all("explanation" not in hit for hit in plain["tools"])
    assert [{k: v for k, v in hit.items() if k != "explanation"} for hit in explained["tools"]] == plain["tools"]
    assert (explained["definitions"], explained["toolset_hash"]) == (plain["definitions"], plain["toolset_hash"])
    assert all(hit["explanation"]["cosine"] == hit["similarity"] for hit in explained["tools"])


async def test_a_strategy_explains_only_its_own_evidence(user: TestUser, sky: str) -> None:
    words = await explain(user, strategy="bm25")
    assert {(each["cosine"], each["cosine_rank"]) for each in words.values()} == {(None, None)}
    assert words["get_forecast"]["bm25_rank"] == 1
    meaning = await explain(user, strategy="semantic")
    assert {(each["bm25"], each["bm25_rank"]) for each in meaning.values()} == {(0, None)}
    assert sorted(each["cosine_rank"] for each in meaning.values()) == [1, 2, 3, 4, 5]


async def test_a_tool_that_performs_the_requested_action_has_a_boost(user: TestUser, sky: str) -> None:
    shown = await explain(user, "show me the weather")
    removed = await explain(user, "delete the weather")
    assert (shown["get_forecast"]["action_boost"], removed["get_forecast"]["action_boost"]) == (0.03, -0.03)
    assert {each["action_boost"] for each in (await explain(user, "the weather")).values()} == {0}


async def test_each_matching_tag_adds_its_boost(user: TestUser, sky: str) -> None:
    keys = {name: each["id"] for name, each in (await user.tools()).items()}
    for name, tags in (("get_forecast", ["sky", "daily"]), ("rain_radar", ["sky", "other"])):
        assert (await user.http.patch(f"/tools/{keys[name]}", json={"tags": tags})).status_code == 200
    found = await explain(user, tags=["sky", "daily", "unused"])
    assert {name: each["tag_boost"] for name, each in found.items()} == {"get_forecast": 0.4, "rain_radar": 0.2}
    assert {each["tag_boost"] for each in (await explain(user)).values()} == {0}


async def test_only_visible_tools_count_towards_ranks_and_document_frequencies(
    container: Container, user: TestUser, sky: str
) -> None:
    """Both for the user and within a project."""
    hidden = (await user.tools())["get_forecast"]["id"]
    await user.http.patch(f"/tools/{hidden}", json={"enabled": False})
    await check_without(container, user, {"get_forecast"})
    rules = [{"pattern": ["rain_*"], "enabled": False}]
    made = await user.http.post("/projects", json={"name": "p", "server_ids": None, "rules": rules})
    await check_without(container, user, {"get_forecast", "rain_radar"}, project_id=made.json()["id"])


async def check_without(container: Container, user: TestUser, hidden: set[str], **fields: Any) -> None:
    seen = [each for each in TOOLS if each["name"] not in hidden]
    found = await explain(user, **fields)
    assert found.keys() == {each["name"] for each in seen}
    bm25 = compute_bm25(seen, MESSAGE)
    cosines = await compute_cosines(container, user, MESSAGE)
    visible = {name: cosine for name, cosine in cosines.items() if name in found}
    assert {name: each["bm25_rank"] for name, each in found.items()} == {n: compute_ranks(bm25).get(n) for n in found}
    assert {name: each["cosine_rank"] for name, each in found.items()} == compute_ranks(visible)
    for name, explanation in found.items():
        assert explanation["bm25"] == pytest.approx(bm25[name], abs=2e-3)


async def test_a_kept_tool_is_explained_and_a_core_tool_is_not(user: TestUser, sky: str) -> None:
    assert (await user.http.put("/core-tools", json={"tools": [tool("ask_user")]})).status_code == 200
    key = (await user.tools())["refund_payment"]["id"]
    answer = await user.discover(MESSAGE, explain=True, keep=[key], limit=1)
    by_name = {hit["tool"]["name"]: (hit["source"], hit.get("explanation")) for hit in answer["tools"]}
    assert by_name["ask_user"] == ("core", None)
    source, explanation = by_name["refund_payment"]
    assert source == "kept"
    assert explanation["cosine_rank"] > 1
    assert by_name["get_forecast"][1]["bm25_rank"] == 1


async def test_a_tool_that_the_message_names_is_marked_as_named(user: TestUser, sky: str) -> None:
    found = await explain(user, query="use search_code for the rain")
    assert {name for name, each in found.items() if each["named_in_message"]} == {"search_code"}
    assert "search_code" in found["search_code"]["matched_words"]
    assert next(iter(found)) == "search_code"


async def test_the_reason_has_the_same_explanation(user: TestUser, sky: str) -> None:
    found = await explain(user)
    last = list(found)[-1]
    body = {"query": MESSAGE, "tool": last, "similarity_threshold": 0, "limit": 1}
    [why] = (await user.http.post("/discover/why", json=body)).json()["items"]
    assert (why["reason"], why["rank"]) == ("outranked", len(TOOLS))
    assert why["explanation"] == found[last]
