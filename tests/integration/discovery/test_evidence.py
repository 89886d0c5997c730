"""`explain`: what each found tool owes its place to, against the same sums done plainly."""

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from app.container import Container
from app.search.tokenizer import tokenize
from tests.conftest import TestUser, tool
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
    "prior",
    "matched_words",
    "named_in_message",
}


@pytest.fixture
async def sky(user: TestUser) -> str:
    return await user.add_tools(*TOOLS, server="sky")


async def explained(user: TestUser, query: str = MESSAGE, **fields: Any) -> dict[str, Json]:
    """By name; a threshold of zero finds everything."""
    answer = await user.discover(query, **{"explain": True, "similarity_threshold": 0, "limit": 50, **fields})
    return {hit["tool"]["name"]: hit["explanation"] for hit in answer["tools"]}


async def plain_cosines(container: Container, user: TestUser, query: str) -> dict[str, float]:
    """Of all of the user's tools, whether they are visible or not."""
    statement = "SELECT tool_name, embedding FROM mcp_tool_embeddings WHERE user_id = %(user)s"
    asked = np.asarray((await container.models.serving.queries.embed(user.id, (query,))).vectors[0], dtype=np.float64)
    asked /= np.linalg.norm(asked)
    vectors = {
        name: each.to_numpy().astype(np.float64) for name, each in await rows(container, statement, user=user.id)
    }
    return {name: float(each @ asked / np.linalg.norm(each)) for name, each in vectors.items()}


def weighted_terms(each: Json, server: str) -> dict[str, float]:
    """A name weighs twice, the names of parameters half."""
    parameters = " ".join(each["inputSchema"]["properties"])
    texts = [(each["name"], 2), (each.get("title", ""), 1), (server, 1), (each["description"], 1), (parameters, 0.5)]
    counted: defaultdict[str, float] = defaultdict(float)
    for text, weight in texts:
        for term in tokenize(text):
            counted[term] += weight
    return counted


def plain_bm25(tools: list[Json], query: str, server: str = "sky") -> dict[str, float]:
    """As the textbook has it, with a document's length compared to fifty."""
    documents = {each["name"]: weighted_terms(each, server) for each in tools}
    scores = dict.fromkeys(documents, 0.0)
    for term in dict.fromkeys(tokenize(query)):
        having = sum(term in document for document in documents.values())
        idf = math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
        for name, document in documents.items():
            length = sum(document.values())
            damping = 1.2 * (1 - 0.75 + 0.75 * length / 50)
            frequency = document.get(term, 0.0)
            scores[name] += idf * frequency * 2.2 / (frequency + damping)
    return scores


def ranks(scores: dict[str, float]) -> dict[str, int]:
    """Ties go by name; what scores nothing has no rank."""
    order = sorted(scores, key=lambda name: (-scores[name], name))
    return {name: place for place, name in enumerate(order, start=1) if scores[name] > 0}


async def test_every_number_is_what_a_plain_sum_gives(container: Container, user: TestUser, sky: str) -> None:
    found = await explained(user)
    assert found.keys() == {each["name"] for each in TOOLS}
    cosines, bm25 = await plain_cosines(container, user, MESSAGE), plain_bm25(TOOLS, MESSAGE)
    for name, explanation in found.items():
        assert explanation.keys() == FIELDS
        assert explanation["cosine"] == pytest.approx(cosines[name], abs=2e-3), name
        assert explanation["bm25"] == pytest.approx(bm25[name], abs=2e-3), name
        assert explanation["cosine_rank"] == ranks(cosines)[name]
        assert explanation["bm25_rank"] == ranks(bm25).get(name)
        assert (explanation["tag_boost"], explanation["named_in_message"]) == (0, False)
    assert found["search_code"]["bm25_rank"] is None
    assert found["get_forecast"]["bm25_rank"] == 1


async def test_matched_words_are_those_of_the_message_that_the_tool_has_in_the_messages_order(
    user: TestUser, sky: str
) -> None:
    found = await explained(user)
    assert found["get_forecast"]["matched_words"] == ["weather", "forecast", "city", "rain"]
    assert found["rain_radar"]["matched_words"] == ["city", "rain"]
    assert found["refund_payment"]["matched_words"] == []


async def test_an_answer_is_the_same_with_and_without_its_explanation(user: TestUser, sky: str) -> None:
    plain, told = await user.discover(MESSAGE), await user.discover(MESSAGE, explain=True)
    assert all("explanation" not in hit for hit in plain["tools"])
    assert [{k: v for k, v in hit.items() if k != "explanation"} for hit in told["tools"]] == plain["tools"]
    assert (told["definitions"], told["toolset_hash"]) == (plain["definitions"], plain["toolset_hash"])
    assert all(hit["explanation"]["cosine"] == hit["similarity"] for hit in told["tools"])


async def test_a_strategy_explains_itself_by_what_it_looks_at(user: TestUser, sky: str) -> None:
    words = await explained(user, strategy="bm25")
    assert {(each["cosine"], each["cosine_rank"]) for each in words.values()} == {(None, None)}
    assert words["get_forecast"]["bm25_rank"] == 1
    meaning = await explained(user, strategy="semantic")
    assert {(each["bm25"], each["bm25_rank"]) for each in meaning.values()} == {(0, None)}
    assert sorted(each["cosine_rank"] for each in meaning.values()) == [1, 2, 3, 4, 5]


async def test_a_tool_that_does_what_the_message_wants_has_a_boost(user: TestUser, sky: str) -> None:
    shown = await explained(user, "show me the weather")
    removed = await explained(user, "delete the weather")
    assert (shown["get_forecast"]["action_boost"], removed["get_forecast"]["action_boost"]) == (0.03, -0.03)
    assert {each["action_boost"] for each in (await explained(user, "the weather")).values()} == {0}


async def test_each_matching_tag_adds_its_boost(user: TestUser, sky: str) -> None:
    keys = {name: each["id"] for name, each in (await user.tools()).items()}
    for name, tags in (("get_forecast", ["sky", "daily"]), ("rain_radar", ["sky", "other"])):
        assert (await user.http.patch(f"/tools/{keys[name]}", json={"tags": tags})).status_code == 200
    found = await explained(user, tags=["sky", "daily", "unused"])
    assert {name: each["tag_boost"] for name, each in found.items()} == {"get_forecast": 0.4, "rain_radar": 0.2}
    assert {each["tag_boost"] for each in (await explained(user)).values()} == {0}


async def test_only_what_is_visible_counts_towards_ranks_and_words(
    container: Container, user: TestUser, sky: str
) -> None:
    """Within what the user sees, and within what a project sees."""
    hidden = (await user.tools())["get_forecast"]["id"]
    await user.http.patch(f"/tools/{hidden}", json={"enabled": False})
    await check_without(container, user, {"get_forecast"})
    rules = [{"pattern": ["rain_*"], "enabled": False}]
    made = await user.http.post("/projects", json={"name": "p", "server_ids": None, "rules": rules})
    await check_without(container, user, {"get_forecast", "rain_radar"}, project_id=made.json()["id"])


async def check_without(container: Container, user: TestUser, hidden: set[str], **fields: Any) -> None:
    seen = [each for each in TOOLS if each["name"] not in hidden]
    found = await explained(user, **fields)
    assert found.keys() == {each["name"] for each in seen}
    bm25 = plain_bm25(seen, MESSAGE)
    cosines = await plain_cosines(container, user, MESSAGE)
    visible = {name: cosine for name, cosine in cosines.items() if name in found}
    assert {name: each["bm25_rank"] for name, each in found.items()} == {n: ranks(bm25).get(n) for n in found}
    assert {name: each["cosine_rank"] for name, each in found.items()} == ranks(visible)
    for name, explanation in found.items():
        assert explanation["bm25"] == pytest.approx(bm25[name], abs=2e-3)


async def test_a_tool_that_is_kept_is_explained_too_and_a_native_one_is_not(user: TestUser, sky: str) -> None:
    assert (await user.http.put("/core-tools", json={"tools": [tool("ask_user")]})).status_code == 200
    key = (await user.tools())["refund_payment"]["id"]
    answer = await user.discover(MESSAGE, explain=True, keep=[key], limit=1)
    told = {hit["tool"]["name"]: (hit["source"], hit.get("explanation")) for hit in answer["tools"]}
    assert told["ask_user"] == ("core", None)
    source, explanation = told["refund_payment"]
    assert source == "kept"
    assert explanation["cosine_rank"] > 1
    assert told["get_forecast"][1]["bm25_rank"] == 1


async def test_a_tool_that_the_message_names_is_said_to_be_named(user: TestUser, sky: str) -> None:
    found = await explained(user, query="use search_code for the rain")
    assert {name for name, each in found.items() if each["named_in_message"]} == {"search_code"}
    assert "search_code" in found["search_code"]["matched_words"]
    assert next(iter(found)) == "search_code"


async def test_the_reason_why_not_carries_the_same_explanation(user: TestUser, sky: str) -> None:
    found = await explained(user)
    last = list(found)[-1]
    body = {"query": MESSAGE, "tool": last, "similarity_threshold": 0, "limit": 1}
    [why] = (await user.http.post("/discover/why", json=body)).json()["items"]
    assert (why["reason"], why["rank"]) == ("outranked", len(TOOLS))
    assert why["explanation"] == found[last]
