"""Discovery learns from the messages for which a tool was used, with the real embedder."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.container import Container, open_container
from app.search.examples import MAX_BOOST
from app.usage.examples import MAX_LEARNED_PER_TOOL, MAX_WEIGHT
from tests.support.clients import TestUser, new_user, open_client
from tests.support.factories import ADMIN_KEY, make_settings, tool
from tests.support.mcp_server import FakeMcpServer
from tests.support.seed_vectors import owner_connection

# No word of the messages below occurs in the description of the tool that they need.
TOOLS = [
    tool("kb_ops_17", "Proxy for backend 17."),
    tool("create_ticket", "Open a ticket for the support team."),
    tool("book_meeting_room", "Reserve a room in the office."),
    tool("get_forecast", "Weather forecast for a city."),
    tool("refund_payment", "Give a customer their money back."),
    tool("track_parcel", "Where a shipment is."),
]
LIVED = [
    "how many days off do I have left this year",
    "what's my remaining vacation balance",
    "can you look up my leftover holidays",
    "show how much annual leave I still have",
    "days of vacation that I have not taken yet",
]
OTHER_WORDING = "how much vacation is left for me"
UNRELATED = ["what will the weather be like in Oslo", "give Ann her money back", "where is my parcel"]

Json = dict[str, Any]


@pytest.fixture
async def learner(user: TestUser) -> TestUser:
    await user.add_tools(*TOOLS)
    return user


async def report(user: TestUser, query: str, tool_name: str, outcome: str = "succeeded") -> None:
    answer = await user.discover(query)
    key = (await user.tools())[tool_name]["id"]
    body = {"discovery_id": answer["discovery_id"], "tool_key": key, "outcome": outcome}
    assert (await user.http.post("/feedback", json=body)).status_code == 204


async def find_names(user: TestUser, query: str, **fields: Any) -> list[str]:
    return [each["tool"]["name"] for each in (await user.discover(query, **fields))["tools"]]


async def read_boost(user: TestUser, query: str, tool_name: str = "kb_ops_17") -> float:
    answer = await user.http.post("/discover/why", json={"query": query, "tool": tool_name})
    boost: float = answer.json()["items"][0]["explanation"]["example_boost"]
    return boost


def read_examples(container: Container, user: TestUser) -> list[tuple[Any, ...]]:
    with owner_connection(container) as connection:
        return connection.execute(
            "SELECT t.name, e.weight, e.source, e.text FROM tool_examples e JOIN mcp_tools t"
            " ON t.user_id = e.user_id AND t.id = e.tool_id WHERE e.user_id = %s ORDER BY t.name, e.weight",
            (user.id,),
        ).fetchall()


async def test_five_successes_bring_a_tool_first_for_that_kind_of_message(learner: TestUser) -> None:
    before = {query: await find_names(learner, query) for query in (OTHER_WORDING, *UNRELATED)}
    assert before[OTHER_WORDING][:1] != ["kb_ops_17"]
    for query in LIVED:
        await report(learner, query, "kb_ops_17")
    assert (await find_names(learner, OTHER_WORDING))[0] == "kb_ops_17"
    after = {query: await find_names(learner, query) for query in UNRELATED}
    assert after == {query: before[query] for query in UNRELATED}


async def test_one_success_already_helps(learner: TestUser) -> None:
    assert await read_boost(learner, OTHER_WORDING) == 0
    await report(learner, LIVED[1], "kb_ops_17")
    boost = await read_boost(learner, OTHER_WORDING)
    assert 0.05 < boost < MAX_BOOST
    assert boost == round(boost, 4)


async def test_an_explanation_says_that_examples_move_a_tool(learner: TestUser) -> None:
    await report(learner, LIVED[1], "kb_ops_17")
    await report(learner, LIVED[1], "create_ticket", "irrelevant")
    messages = {
        name: (await learner.http.post("/discover/why", json={"query": LIVED[1], "tool": name})).json()["items"][0]
        for name in ("kb_ops_17", "create_ticket", "get_forecast")
    }
    assert "examples of messages like this one raise its score by 0." in messages["kb_ops_17"]["message"]
    assert "irrelevant to messages like this one lower its score by 0." in messages["create_ticket"]["message"]
    assert "like this one" not in messages["get_forecast"]["message"]


async def test_a_message_like_past_ones_is_not_answered_with_nothing(learner: TestUser) -> None:
    question = "am I happy"
    assert (await learner.discover(question))["no_match"]
    await report(learner, "am I happy today", "kb_ops_17")
    answer = await learner.discover(question)
    assert not answer["no_match"]
    assert answer["tools"][0]["tool"]["name"] == "kb_ops_17"


async def test_irrelevant_lowers_a_tool_and_less_than_a_success_raises_it(learner: TestUser) -> None:
    await report(learner, LIVED[0], "create_ticket", "irrelevant")
    lowered = await read_boost(learner, LIVED[0], "create_ticket")
    await report(learner, LIVED[0], "kb_ops_17")
    assert lowered < 0 < -lowered < await read_boost(learner, LIVED[0])


@pytest.mark.parametrize("outcome", ["called", "failed"])
async def test_nothing_is_learned_from_other_outcomes(container: Container, learner: TestUser, outcome: str) -> None:
    await report(learner, LIVED[0], "kb_ops_17", outcome)
    assert read_examples(container, learner) == []


async def test_wrong_feedback_is_outweighed_by_later_successes(learner: TestUser) -> None:
    await report(learner, LIVED[0], "create_ticket")
    assert (await find_names(learner, LIVED[0]))[0] == "create_ticket"
    for query in LIVED[1:4]:
        await report(learner, query, "kb_ops_17")
    assert (await find_names(learner, OTHER_WORDING))[0] == "kb_ops_17"


async def test_repeated_messages_strengthen_one_example_within_a_bound(container: Container, learner: TestUser) -> None:
    for _ in range(int(MAX_WEIGHT) + 2):
        await report(learner, LIVED[0], "kb_ops_17")
    assert read_examples(container, learner) == [("kb_ops_17", MAX_WEIGHT, "use", None)]


async def test_feedback_that_is_repeated_teaches_once(container: Container, learner: TestUser) -> None:
    answer, key = await learner.discover(LIVED[0]), (await learner.tools())["kb_ops_17"]["id"]
    body = {"discovery_id": answer["discovery_id"], "tool_key": key, "outcome": "succeeded"}
    for _ in range(3):
        assert (await learner.http.post("/feedback", json=body)).status_code == 204
    assert read_examples(container, learner) == [("kb_ops_17", 1.0, "use", None)]


async def test_concurrent_feedback_stays_within_the_bound_of_a_tool(container: Container, learner: TestUser) -> None:
    subjects = "ships bees law rice opera tax snow judo glass mail coal jazz lamps silk mud dice kites moss rugby zinc"
    questions = ("tell me about {} in history", "what does {} cost in total", "who knows somebody who likes {}")
    queries = [question.format(subject) for question in questions for subject in subjects.split()]
    await asyncio.gather(*(report(learner, query, "kb_ops_17") for query in queries))
    assert len(read_examples(container, learner)) == MAX_LEARNED_PER_TOOL


async def test_an_old_example_counts_less(container: Container, learner: TestUser) -> None:
    await report(learner, LIVED[0], "kb_ops_17")
    fresh = await read_boost(learner, OTHER_WORDING)
    with owner_connection(container) as connection:
        connection.execute("UPDATE tool_examples SET used_on = CURRENT_DATE - 60 WHERE user_id = %s", (learner.id,))
        connection.execute(
            "UPDATE users SET examples_version = nextval('catalog_versions') WHERE id = %s", (learner.id,)
        )
    assert 0 < await read_boost(learner, OTHER_WORDING) < fresh


async def test_a_successful_call_is_learned_from_once(container: Container, user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = TOOLS
    await user.connect(mcp)
    alike = "how many days off are left for me this year"
    assert "kb_ops_17" not in await find_names(user, alike)
    await user.discover(LIVED[0], similarity_threshold=0)
    for _ in range(2):
        assert (await user.execute("kb_ops_17")).status_code == 200
    await container.learner.flush()
    assert read_examples(container, user) == [("kb_ops_17", 1.0, "use", None)]
    assert (await find_names(user, alike))[0] == "kb_ops_17"


async def test_a_call_that_names_its_discovery_teaches_for_that_message(
    container: Container, user: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools = TOOLS
    await user.connect(mcp)
    first = await user.discover(LIVED[0], similarity_threshold=0)
    await user.discover("where is my parcel", similarity_threshold=0)
    assert (await user.execute("kb_ops_17", discovery_id=first["discovery_id"])).status_code == 200
    assert (await user.execute("create_ticket")).status_code == 200
    await container.learner.flush()
    boosts = [
        await read_boost(user, query, name) > 0.4
        for name in ("kb_ops_17", "create_ticket")
        for query in (LIVED[0], "where is my parcel")
    ]
    assert boosts == [True, False, False, True]


async def test_a_call_of_a_tool_that_no_discovery_returned_teaches_nothing(
    container: Container, user: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools = TOOLS
    await user.connect(mcp)
    assert (await user.execute("kb_ops_17")).status_code == 200
    await container.learner.flush()
    assert read_examples(container, user) == []


async def test_examples_of_one_user_do_not_affect_another(container: Container, learner: TestUser) -> None:
    async with new_user(container) as other:
        await other.add_tools(*TOOLS)
        before = await other.discover(OTHER_WORDING)
        for query in LIVED:
            await report(learner, query, "kb_ops_17")
        after = await other.discover(OTHER_WORDING)
    assert [each["score"] for each in after["tools"]] == [each["score"] for each in before["tools"]]
    assert (await find_names(learner, OTHER_WORDING))[0] == "kb_ops_17"


async def test_examples_are_gone_with_their_tool_and_with_the_user(container: Container, learner: TestUser) -> None:
    await report(learner, LIVED[0], "kb_ops_17")
    await report(learner, LIVED[1], "create_ticket")
    with owner_connection(container) as connection:
        connection.execute("DELETE FROM mcp_tools WHERE user_id = %s AND name = 'kb_ops_17'", (learner.id,))
        assert [name for name, *_ in read_examples(container, learner)] == ["create_ticket"]
        connection.execute("DELETE FROM users WHERE id = %s", (learner.id,))
        for table in ("tool_examples", "discovery_vectors"):
            assert connection.execute(
                f"SELECT count(*) FROM {table} WHERE user_id = %s".encode(), (learner.id,)
            ).fetchone() == (0,)


async def test_one_user_can_switch_learning_off(container: Container, learner: TestUser) -> None:
    await report(learner, LIVED[0], "kb_ops_17")
    assert await read_boost(learner, OTHER_WORDING) > 0
    async with open_client(container, Authorization=f"Bearer {ADMIN_KEY}") as admin:
        changes = {"settings": {"learn_from_use": False}}
        assert (await admin.patch(f"/users/{learner.id}", json=changes)).status_code == 200
    assert await read_boost(learner, OTHER_WORDING) == 0
    await report(learner, LIVED[1], "create_ticket")
    assert [name for name, *_ in read_examples(container, learner)] == ["kb_ops_17"]


async def test_nothing_is_learned_or_used_while_learning_is_off(tmp_path: Path, fresh_database: str) -> None:
    on, off = make_settings(tmp_path), make_settings(tmp_path, learn_from_use=False)
    async with open_container(on, fresh_database) as container, new_user(container, "alice") as user:
        await user.add_tools(*TOOLS)
        for query in LIVED:
            await report(user, query, "kb_ops_17")
        assert await read_boost(user, OTHER_WORDING) > 0
    async with open_container(off, fresh_database) as container, new_user(container, "alice") as user:
        assert await read_boost(user, OTHER_WORDING) == 0
        known = read_examples(container, user)
        await report(user, "an entirely different question about leave", "kb_ops_17")
        assert read_examples(container, user) == known
        with owner_connection(container) as connection:
            rows = connection.execute("SELECT id FROM discovery_vectors").fetchall()
        assert len(rows) == len(LIVED)
