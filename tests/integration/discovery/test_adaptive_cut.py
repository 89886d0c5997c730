"""A user's own outcomes and calibration move the cut of no match, within a bound, and nobody else's."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.container import Container
from app.discovery.ids import new_discovery_id
from app.embeddings.calibration import UserCalibration, shift_chance
from app.management.models import store_user_calibration
from tests.support.clients import TestUser, new_user
from tests.support.console_client import open_console
from tests.support.factories import ADMIN_KEY, tool

FORECAST = tool("get_forecast", "Weather forecast for a city.")
REFUND = tool("refund_payment", "Give a customer their money back.")
BORDERLINE = "do you like sunny days"
JUST_ABOVE = 0.3
"""How far the cut of the test lies above the chance of the borderline message, in logits."""

Json = dict[str, Any]


class Client:
    """A user with tools, and with a cut just above the borderline message."""

    def __init__(self, container: Container, user: TestUser) -> None:
        self.container = container
        self.user = user
        self.ids: dict[str, str] = {}

    async def prepare(self) -> None:
        await self.user.add_tools(FORECAST, REFUND)
        self.ids = {name: each["id"] for name, each in (await self.user.tools()).items()}
        chance = (await self.ask_why())["confidence"]["chance"]
        await self.set_cut(min_low=shift_chance(chance, JUST_ABOVE), min_high=0.9)

    async def set_cut(self, min_low: float, min_high: float) -> None:
        model = self.container.model
        known = model.calibration
        own = UserCalibration(
            model.id, known.evidence_weight, known.need_weight, known.bias, min_low, min_high, known.temperature
        )
        await self.store(own)

    async def store(self, own: UserCalibration | None) -> None:
        await store_user_calibration(self.container.database, self.user.id, own, actor="test")

    async def ask_why(self, query: str = BORDERLINE, tool_name: str = "get_forecast") -> Json:
        answer = await self.user.http.post("/discover/why", json={"query": query, "tool": tool_name})
        assert answer.status_code == 200, answer.text
        reason: Json = answer.json()["items"][0]
        return reason

    async def discover(self, query: str = BORDERLINE, **fields: Any) -> Json:
        return await self.user.discover(query, **fields)

    async def report(self, discovery_id: str, outcome: str, tool_name: str = "get_forecast") -> None:
        body = {"discovery_id": discovery_id, "tool_key": self.ids[tool_name], "outcome": outcome}
        answer = await self.user.http.post("/feedback", json=body)
        assert answer.status_code == 204, answer.text

    async def use_low_answers(self, count: int) -> None:
        """Ask for the tools of the borderline message in spite of its chance, and report that one was called.

        It moves the cut as a success does, and unlike a success it is no example for the next message of this kind.
        """
        for _ in range(count):
            await self.report((await self.discover(similarity_threshold=0))["discovery_id"], "called")

    async def report_chance(self, count: int, chance: float, outcome: str) -> None:
        """Report an outcome of answers with this chance."""
        for _ in range(count):
            await self.report(new_discovery_id(self.container.sealer, self.user.id, chance), outcome)

    async def read_confidence(self) -> Json:
        confidence: Json = (await self.ask_why())["confidence"]
        return confidence


@pytest.fixture
async def client(container: Container, user: TestUser) -> Client:
    made = Client(container, user)
    await made.prepare()
    return made


@pytest.fixture
async def other_client(container: Container, client: Client) -> AsyncIterator[Client]:
    async with new_user(container) as user:
        made = Client(container, user)
        await made.prepare()
        yield made


async def test_calls_from_low_answers_let_a_borderline_message_get_tools(client: Client, other_client: Client) -> None:
    before = await client.discover()
    assert (before["confidence"], before["tools"]) == ("none", [])
    await client.use_low_answers(9)
    assert (await client.discover())["tools"] == []

    await client.use_low_answers(3)
    after = await client.discover()
    assert after["confidence"] == "low"
    assert after["tools"][0]["tool"]["name"] == "get_forecast"
    assert (await other_client.discover())["tools"] == []


async def test_irrelevant_answers_lower_the_chance(client: Client) -> None:
    query = "it is so hot today"
    chance = (await client.ask_why(query))["confidence"]["chance"]
    await client.set_cut(min_low=shift_chance(chance, -JUST_ABOVE), min_high=0.9)
    assert (await client.discover(query))["tools"]
    await client.report_chance(30, 0.4, "irrelevant")
    assert (await client.discover(query))["tools"] == []
    reason = await client.ask_why(query)
    assert reason["reason"] == "no_match"
    assert "30 outcomes lower the chance that any tool fits from" in reason["message"].replace(
        "own calibration and ", ""
    )


@pytest.mark.parametrize(("outcome", "bound"), [("succeeded", 1), ("called", 1), ("failed", 1), ("irrelevant", -1)])
async def test_the_shift_is_bounded(client: Client, outcome: str, bound: int) -> None:
    chance = 0.1 if bound > 0 else 0.85
    await client.report_chance(40, chance, outcome)
    confidence = await client.read_confidence()
    assert (confidence["shift"], confidence["outcomes"]) == (bound, 40)


async def test_successes_of_confident_answers_move_nothing(client: Client) -> None:
    await client.report_chance(15, 0.95, "succeeded")
    confidence = await client.read_confidence()
    assert (confidence["shift"], confidence["outcomes"]) == (0, 0)


async def test_an_answer_counts_once_however_many_outcomes_it_has(client: Client) -> None:
    discovery_id = new_discovery_id(client.container.sealer, client.user.id, 0.2)
    for outcome in ("irrelevant", "irrelevant", "called", "succeeded", "failed"):
        await client.report(discovery_id, outcome)
        await client.report(discovery_id, outcome, "refund_payment")
    assert (await client.read_confidence())["outcomes"] == 1
    async with client.container.database.transaction(client.user.id) as session:
        [(stored,)] = await session.rows("SELECT adaptation FROM users WHERE id = %(id)s", {"id": client.user.id})
    assert stored["low_residual"] == pytest.approx(0.8, abs=0.02)
    assert stored["low_information"] == pytest.approx(0.16, abs=0.01)


async def test_reports_at_the_same_time_all_count(client: Client) -> None:
    await asyncio.gather(*(client.report_chance(3, 0.1, "succeeded") for _ in range(8)))
    same = new_discovery_id(client.container.sealer, client.user.id, 0.1)
    await asyncio.gather(*(client.report(same, "called") for _ in range(8)))
    assert (await client.read_confidence())["outcomes"] == 25


@pytest.mark.parametrize(
    "fields",
    [
        {"query": "wie wird das Wetter morgen in der Stadt", "similarity_threshold": 0},
        {"query": "use get_forecast"},
        {"query": "weather forecast", "strategy": "bm25"},
    ],
    ids=["not English", "names a tool", "by words alone"],
)
async def test_answers_without_a_known_chance_say_nothing_about_it(client: Client, fields: Json) -> None:
    answer = await client.discover(**fields)
    assert answer["tools"]
    await client.report(answer["discovery_id"], "irrelevant")
    assert (await client.read_confidence())["outcomes"] == 0
    await client.use_low_answers(1)
    assert (await client.read_confidence())["outcomes"] == 1


async def test_the_reason_says_what_the_outcomes_and_the_calibration_changed(client: Client) -> None:
    known = client.container.model.calibration
    own = UserCalibration(
        client.container.model.id, known.evidence_weight, known.need_weight, known.bias - 0.5, 0.5, 0.9, 0.05
    )
    await client.store(own)
    reason = await client.ask_why()
    assert reason["reason"] == "no_match"
    assert "; this user's own calibration lowers the chance that any tool fits from " in reason["message"]
    assert (reason["confidence"]["source"], reason["confidence"]["shift"]) == ("user", 0)

    await client.report_chance(12, 0.1, "succeeded")
    reason = await client.ask_why()
    assert "; this user's own calibration and 12 outcomes raise the chance that any tool fits" in reason["message"]
    assert (reason["confidence"]["shift"], reason["confidence"]["outcomes"]) == (1, 12)

    await client.store(None)
    assert (await client.read_confidence()) | {"chance": None} == {
        "chance": None,
        "shift": 0,
        "outcomes": 0,
        "source": "model",
    }
    await client.report_chance(12, 0.1, "succeeded")
    reason = await client.ask_why("how do clouds form")
    assert reason["reason"] == "no_match"
    assert "; this user's 12 outcomes raise the chance that any tool fits from " in reason["message"]


async def test_a_calibration_with_another_model_is_ignored(client: Client) -> None:
    await client.store(UserCalibration("openai:other", 1.0, 1.0, 9.0, 0.0, 0.0, 1.0))
    assert (await client.read_confidence())["source"] == "model"
    await client.set_cut(0.0, 0.9)
    assert (await client.read_confidence())["source"] == "user"


async def test_a_deleted_user_starts_again(client: Client) -> None:
    await client.report_chance(12, 0.1, "succeeded")
    assert (await client.read_confidence())["shift"] == 1
    container, user_id = client.container, client.user.id
    async with new_user(container) as admin:
        headers = {"Authorization": f"Bearer {ADMIN_KEY}", "X-User-Id": user_id}
        assert (await admin.http.delete(f"/users/{user_id}", headers=headers)).status_code == 204
        body = {"query": BORDERLINE, "tool": "get_forecast"}
        assert (await admin.http.post("/discover/why", json=body, headers=headers)).status_code == 200
    async with container.database.system_transaction() as session:
        rows = await session.rows("SELECT calibration, adaptation FROM users WHERE id = %(id)s", {"id": user_id})
    assert rows == [(None, {})]


async def test_the_overview_shows_the_moved_cut(client: Client) -> None:
    await client.store(None)
    async with open_console(client.container, client.user.key) as console:
        assert "Cut of no match" not in await console.get_page("/console/overview")
        await client.report_chance(23, 0.1, "succeeded")
        page = await console.get_page("/console/overview")
        assert "Cut of no match: moved by +1.00 by 23 outcomes: more messages get tools." in page
        await client.set_cut(0.1, 0.9)
        assert "Cut of no match: calibrated for this user." in await console.get_page("/console/overview")
