"""The conversation of `bench/tool_changes`, ten messages over 200 tools, against fakes of both vendors' APIs.

The service, the embedding model and the vendors' SDKs are real. The fakes enforce the rule of models that keep their
reasoning: what was sent before a thought must not change.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from app.container import Container
from bench.tool_changes.catalogue import push_servers, push_tools, read_servers
from bench.tool_changes.chats import CHATS, Chat
from bench.tool_changes.conversation import Script
from bench.tool_changes.sources import (
    AllTools,
    FullArrays,
    KeptArrays,
    ListedChanges,
    Offer,
    RememberedChanges,
    ToolSource,
)
from examples.fake_model import FakeModel, running_fake_model
from tests.support.clients import TestUser, new_user
from toolscout_client import Toolscout

Json = dict[str, Any]

MESSAGES = 10

for_both_vendors = pytest.mark.parametrize("vendor", CHATS)
for_all_changes = pytest.mark.parametrize("source_type", [ListedChanges, RememberedChanges])


@dataclass
class RecordedSource:
    source: ToolSource
    offers: list[Offer] = field(default_factory=list)

    def offer(self, history: list[Json], /) -> Offer:
        self.offers.append(self.source.offer(history))
        return self.offers[-1]

    def list_changed_turns(self) -> list[int]:
        """The messages whose `tools` are not those of the message before."""
        pairs = zip(self.offers, self.offers[1:], strict=False)
        return [turn for turn, (before, after) in enumerate(pairs, 2) if before.tools != after.tools]


@dataclass
class Replay:
    chat: Chat
    source: RecordedSource
    script: Script
    model: FakeModel


@contextmanager
def open_replay(toolscout: Toolscout, vendor: str, source_type: Any) -> Iterator[Replay]:
    script, chat_type = Script(), CHATS[vendor]
    model = FakeModel(script.decide)
    source = RecordedSource(source_type(toolscout, chat_type.api_format))
    with running_fake_model(model) as url:
        yield Replay(chat_type(url, source, script), source, script, model)


async def play(toolscout: Toolscout, vendor: str, source_type: Any) -> Replay:
    with open_replay(toolscout, vendor, source_type) as replay:
        await asyncio.to_thread(replay.chat.play)  # the application answers in this thread
    assert len(replay.source.offers) == MESSAGES
    return replay


@pytest.fixture(scope="module")
async def chatter(container: Container, address: str) -> AsyncIterator[TestUser]:
    """A user with the 200 tools."""
    async with new_user(container) as created:
        headers = {"Authorization": f"Bearer {created.key}"}
        with httpx.Client(base_url=address, headers=headers, timeout=120) as client:
            await asyncio.to_thread(push_servers, client)
        yield created


@pytest.fixture
def toolscout(chatter: TestUser, address: str) -> Iterator[Toolscout]:
    with Toolscout(address, chatter.key) as client:
        yield client


def test_the_catalogue_has_200_tools() -> None:
    assert sum(len(tools) for tools in read_servers().values()) == 200


@for_both_vendors
async def test_new_tools_for_each_message_are_rejected(toolscout: Toolscout, vendor: str) -> None:
    replay = await play(toolscout, vendor, FullArrays)
    assert replay.chat.tally.rejected == replay.source.list_changed_turns()
    assert replay.chat.tally.rejected == list(range(2, MESSAGES + 1))
    assert len(replay.model.rejections) == len(replay.chat.tally.rejected)


@for_both_vendors
async def test_kept_tools_are_rejected_as_soon_as_another_is_appended(toolscout: Toolscout, vendor: str) -> None:
    replay = await play(toolscout, vendor, KeptArrays)
    assert replay.chat.tally.rejected == replay.source.list_changed_turns()
    assert 2 in replay.chat.tally.rejected
    for before, after in zip(replay.source.offers, replay.source.offers[1:], strict=False):
        assert after.tools[: len(before.tools)] == before.tools  # nothing but appended


@for_both_vendors
@for_all_changes
async def test_changes_pass_for_all_messages(toolscout: Toolscout, vendor: str, source_type: Any) -> None:
    replay = await play(toolscout, vendor, source_type)
    assert replay.model.rejections == []
    assert replay.model.dropped == []
    assert replay.model.redundant == []
    assert replay.script.missing == []
    assert replay.source.list_changed_turns() == []
    assert sum(offer.change is not None for offer in replay.source.offers) > MESSAGES / 2


async def test_a_remembered_conversation_loses_tools_that_were_not_called_for_long(toolscout: Toolscout) -> None:
    counts = (await play(toolscout, "Anthropic", RememberedChanges)).script.tool_counts
    assert counts[MESSAGES - 2] > counts[1]  # it grows before
    assert counts[MESSAGES] < counts[MESSAGES - 2]


@for_both_vendors
async def test_changes_cost_fewer_uncached_tokens_than_every_other_way(toolscout: Toolscout, vendor: str) -> None:
    ways = (AllTools, FullArrays, KeptArrays, ListedChanges)
    every, full, kept, changes = [(await play(toolscout, vendor, way)).chat.tally for way in ways]
    assert every.rejected == []  # `tools` never changes, and is large
    assert changes.uncached_tokens < min(full.uncached_tokens, kept.uncached_tokens, every.uncached_tokens)
    assert full.input_tokens < changes.input_tokens < every.input_tokens
    assert changes.cost < min(kept.cost, every.cost)


FIND_FREE_TIME, CREATE_EVENT = "find_free_time", "create_event"
CHANGED_AFTER = 5


@dataclass
class Calendar:
    server_id: str
    client: httpx.Client

    async def replace(self) -> None:
        """Let one of the tools that the model has called vanish, and describe the other in another way."""
        tools = [tool for tool in read_servers()["calendar"] if tool["name"] != CREATE_EVENT]
        await self._push(
            [{**tool, "description": "Find free slots."} if tool["name"] == FIND_FREE_TIME else tool for tool in tools]
        )

    async def restore(self) -> None:
        await self._push(read_servers()["calendar"])

    async def _push(self, tools: list[Json]) -> None:
        await asyncio.to_thread(push_tools, self.client, self.server_id, tools)


@pytest.fixture
async def calendar(chatter: TestUser, address: str) -> AsyncIterator[Calendar]:
    servers = (await chatter.http.get("/servers", params={"limit": 200})).json()["items"]
    [server_id] = [server["id"] for server in servers if server["name"] == "calendar"]
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {chatter.key}"}, timeout=120) as client:
        calendar = Calendar(server_id, client)
        yield calendar
        await calendar.restore()


@for_all_changes
async def test_a_tool_that_vanishes_and_one_that_changes_are_taken_from_claude(
    toolscout: Toolscout, calendar: Calendar, source_type: Any
) -> None:
    with open_replay(toolscout, "Anthropic", source_type) as replay:
        for turn in range(1, MESSAGES + 1):
            await asyncio.to_thread(replay.chat.take_turn, turn)
            if turn == CHANGED_AFTER:
                await calendar.replace()
    change = replay.source.offers[CHANGED_AFTER].change
    assert change is not None
    removed = {block["tool"]["name"] for block in change["content"] if block["type"] == "tool_removal"}
    added = [block["tool"]["definition"] for block in change["content"] if block["type"] == "tool_addition"]
    assert {FIND_FREE_TIME, CREATE_EVENT} <= removed
    assert [tool["description"] for tool in added if tool["name"] == FIND_FREE_TIME] == ["Find free slots."]
    assert CREATE_EVENT not in {tool["name"] for tool in added}
    assert (replay.model.rejections, replay.model.redundant, replay.script.missing) == ([], [], [])


@for_all_changes
async def test_openai_may_not_call_a_tool_that_has_vanished(
    toolscout: Toolscout, calendar: Calendar, source_type: Any
) -> None:
    with open_replay(toolscout, "OpenAI", source_type) as replay:
        for turn in range(1, MESSAGES + 1):
            await asyncio.to_thread(replay.chat.take_turn, turn)
            if turn == CHANGED_AFTER:
                await calendar.replace()
    before, after = replay.source.offers[CHANGED_AFTER - 1 : CHANGED_AFTER + 1]
    assert before.allowed is None
    assert after.allowed is not None
    assert FIND_FREE_TIME in after.allowed
    assert CREATE_EVENT not in after.allowed
    assert after.change is not None
    assert [tool["description"] for tool in after.change["tools"] if tool["name"] == FIND_FREE_TIME] == [
        "Find free slots."
    ]
    assert (replay.model.rejections, replay.script.missing) == ([], [])
