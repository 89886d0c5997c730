"""Statistics over time: aggregated by steps, for one user or for all users together."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from app.container import Container
from app.errors import InvalidInput
from app.usage.counters import DiscoverySample, UsageCounters
from app.usage.stats import MAX_POINTS, Step, Window
from tests.support.checks import Json, assert_problem
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.usage import FAST

NOON = datetime(1999, 5, 5, 12, tzinfo=UTC)
"""Before the discoveries of all other tests."""

RecordPast = Callable[[TestUser, timedelta, DiscoverySample], Awaitable[None]]


@pytest.fixture
def record_past(container: Container) -> RecordPast:
    async def record(user: TestUser, after_noon: timedelta, sample: DiscoverySample) -> None:
        usage_counters = UsageCounters(container.database, (NOON + after_noon).timestamp)
        usage_counters.record_discovery(user.id, [], sample)
        await usage_counters.flush()

    return record


async def get_stats(http: httpx.AsyncClient, **query: Any) -> Json:
    answer = await http.get("/stats", params=query)
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


def afternoon(**more: str) -> dict[str, str]:
    return {"since": NOON.isoformat(), "until": (NOON + timedelta(hours=3)).isoformat(), **more}


def minutes(n: float) -> timedelta:
    return timedelta(minutes=n)


async def test_minutes_are_aggregated_into_steps(user: TestUser, record_past: RecordPast) -> None:
    slow = DiscoverySample(0.3, degraded=True, no_match=True, cache_hit=False, tokens_all=500, tokens_selected=500)
    for after, sample in [(0, FAST), (0.5, FAST), (59, slow), (61, FAST), (-1, FAST), (180, FAST)]:
        await record_past(user, minutes(after), sample)
    body = await get_stats(user.http, **afternoon())
    assert [point["at"] for point in body["points"]] == [f"1999-05-05T{hour}:00:00Z" for hour in (12, 13, 14)]
    first, second, third = body["points"]
    assert {name: first[name] for name in ("discoveries", "degraded", "no_match", "cache_hits", "tokens_saved")} == {
        "discoveries": 3,
        "degraded": 1,
        "no_match": 1,
        "cache_hits": 2,
        "tokens_saved": 1_800,
    }
    assert 4 < first["p50_ms"] <= 5
    assert 200 < first["p95_ms"] <= 300
    assert (second["discoveries"], second["degraded"], second["tokens_saved"]) == (1, 0, 900)
    assert (third["discoveries"], third["p50_ms"], third["p95_ms"]) == (0, None, None)
    assert body["totals"] == {
        "discoveries": 4,
        "degraded": 1,
        "no_match": 1,
        "cache_hits": 3,
        "tokens_saved": 2_700,
        "p50_ms": body["totals"]["p50_ms"],
        "p95_ms": body["totals"]["p95_ms"],
        "degraded_rate": 0.25,
        "no_match_rate": 0.25,
        "cache_hit_rate": 0.75,
        "tokens_saved_percent": 77.1,
    }


@pytest.mark.parametrize(("step", "points", "filled"), [("minute", 180, 3), ("hour", 3, 2), ("day", 1, 1)])
async def test_every_step_has_a_point(
    user: TestUser, record_past: RecordPast, step: Step, points: int, filled: int
) -> None:
    for after in (0, 0.9, 30, 100):
        await record_past(user, minutes(after), FAST)
    body = await get_stats(user.http, **afternoon(step=step))
    assert body["step"] == step
    assert len(body["points"]) == points
    assert sum(point["discoveries"] for point in body["points"]) == 4
    assert sum(point["discoveries"] > 0 for point in body["points"]) == filled


async def test_the_default_is_the_last_day_by_the_hour(container: Container, user: TestUser) -> None:
    await user.add_tools(tool("read_file", "Reads a file."))
    found = await user.discover("read a file", similarity_threshold=0)
    await container.usage_counters.flush()
    body = await get_stats(user.http)
    assert body["step"] == "hour"
    assert len(body["points"]) in (24, 25)
    assert body["points"][-1]["discoveries"] + body["points"][-2]["discoveries"] == 1
    assert body["totals"]["tokens_saved"] == found["tokens"]["all"] - found["tokens"]["selected"]
    assert 0 < body["totals"]["p50_ms"] <= 5_000


async def test_discoveries_in_a_project_without_search_are_not_counted(container: Container, user: TestUser) -> None:
    project = (await user.http.post("/projects", json={"name": "silent", "optimization": None})).json()
    await user.discover("read a file", project_id=project["id"])
    await container.usage_counters.flush()
    assert (await get_stats(user.http))["totals"]["discoveries"] == 0
    await user.discover("read a file")
    await container.usage_counters.flush()
    assert (await get_stats(user.http))["totals"]["discoveries"] == 1


async def test_the_most_used_tools_come_first_and_never_found_tools_are_listed(
    container: Container, user: TestUser
) -> None:
    names = ["a", "b", "c", "d", "off"]
    await user.add_tools(*(tool(name) for name in names))
    ids = {name: each["id"] for name, each in (await user.tools()).items()}
    await user.http.patch(f"/tools/{ids['off']}", json={"enabled": False})
    usage_counters = UsageCounters(container.database)
    usage_counters.record_discovery(user.id, [ids["a"], ids["b"], ids["c"], "gone"], FAST)
    usage_counters.record_discovery(user.id, [ids["a"]], FAST)
    usage_counters.record_call(user.id, ids["b"], succeeded=True)
    await usage_counters.flush()
    body = await get_stats(user.http)
    named = {"server_name": "files"}
    assert body["most_used"] == [
        {**named, "tool_key": ids["b"], "name": "b", "discovered": 1, "called": 1, "succeeded": 1},
        {**named, "tool_key": ids["a"], "name": "a", "discovered": 2, "called": 0, "succeeded": 0},
        {**named, "tool_key": ids["c"], "name": "c", "discovered": 1, "called": 0, "succeeded": 0},
    ]
    assert body["never_found"] == [{**named, "tool_key": ids["d"], "name": "d"}]
    assert body["never_found_count"] == 1


async def test_ten_never_found_tools_are_listed_and_all_are_counted(user: TestUser) -> None:
    await user.add_tools(*(tool(f"tool_{n:02}") for n in range(15)))
    body = await get_stats(user.http)
    assert [each["name"] for each in body["never_found"]] == [f"tool_{n:02}" for n in range(10)]
    assert (body["never_found_count"], body["most_used"]) == (15, [])


async def test_an_admin_sees_one_user_or_the_sums_of_all(
    admin: httpx.AsyncClient, user: TestUser, other_user: TestUser, record_past: RecordPast
) -> None:
    when = timedelta(days=400)
    window = {"since": (NOON + when).isoformat(), "until": (NOON + when + minutes(60)).isoformat()}
    await user.add_tools(tool("read_file"))
    for each in (user, other_user):
        await record_past(each, when, replace(FAST, degraded=each is user))
    together = await get_stats(admin, **window)
    assert (together["totals"]["discoveries"], together["totals"]["degraded_rate"]) == (2, 0.5)
    assert (together["most_used"], together["never_found"], together["never_found_count"]) == ([], [], None)
    named = await admin.get("/stats", params=window, headers={"X-User-Id": user.id})
    assert (named.json()["totals"]["discoveries"], named.json()["never_found_count"]) == (1, 1)
    assert (await get_stats(other_user.http, **window))["totals"]["degraded_rate"] == 0


@pytest.mark.parametrize(
    "query",
    [
        {"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"},
        {"since": "2026-01-01T00:00:00Z", "until": "2026-01-01T00:00:00Z"},
        {"since": "2026-01-01T00:00:00Z", "until": "2026-02-01T00:00:00Z", "step": "minute"},
        {"since": "0001-01-01T00:00:00+14:00", "until": "0001-01-01T01:00:00+14:00"},
        {"since": "9999-12-31T22:00:00-14:00", "until": "9999-12-31T23:00:00-14:00"},
        {"until": "0001-01-01T00:00:00"},
        {"step": "week"},
        {"since": "yesterday"},
    ],
    ids=str,
)
async def test_an_invalid_window_is_rejected(user: TestUser, query: Json) -> None:
    assert_problem(await user.http.get("/stats", params=query), 422)
    assert (await user.http.get("/stats")).status_code == 200


def test_a_window_starts_at_the_start_of_a_step() -> None:
    moment = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    assert Window.create(now=moment) == Window(datetime(2026, 3, 3, 5, tzinfo=UTC), moment, "hour")
    assert Window.create(moment, moment + timedelta(days=2), "day").since == datetime(2026, 3, 4, tzinfo=UTC)
    abroad = moment.astimezone(tz=None)
    assert Window.create(abroad, abroad + minutes(5), "minute").since == datetime(2026, 3, 4, 5, 6, tzinfo=UTC)


def test_the_number_of_points_is_limited() -> None:
    longest = Window.create(NOON, NOON + minutes(MAX_POINTS), "minute")
    assert len(list(longest.steps())) == MAX_POINTS
    with pytest.raises(InvalidInput):
        Window.create(NOON, NOON + minutes(MAX_POINTS + 1), "minute")
