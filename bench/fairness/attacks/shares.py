"""Attacks of one user, or of one provider, on what all users share."""

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import httpx

from bench.fairness.attacks.base import Attack
from bench.fairness.connections import open_client
from bench.fairness.stage import Stage
from bench.load.traffic import MESSAGE, make_question
from bench.service import ADMIN_KEY

PARALLEL_RULES = 40
SEARCHES, SENT_TOOLS = 12, 600
HANGING_USERS = 36
UNRESOLVED_NAMES = 24
FLOOD_CONNECTIONS = 100
LONG_QUESTIONS, LONG_WORDS = 20, 400
SLOW_WORDS = 1_200
CONSOLE_CONNECTIONS = 40
RATE_LIMIT = 25
"""A little more than the victim sends."""
RETRY_S = 0.05
"""Pause of a client after an error, as after a 429."""

Send = Callable[[httpx.AsyncClient, int], Awaitable[httpx.Response]]


async def send_in_parallel(stage: Stage, send: Send, parallel: int) -> None:
    """Let so many workers send one request after the other, each with a number of its own, until cancelled."""
    numbers = itertools.count(stage.next_number())

    async def work() -> None:
        while True:
            with suppress(httpx.HTTPError):
                response = await send(client, next(numbers))
                stage.attacker_statuses[str(response.status_code)] += 1
                if response.is_success:
                    continue
            await asyncio.sleep(RETRY_S)

    async with open_client(stage.service.url, stage.keys.attacker) as client, asyncio.TaskGroup() as tasks:
        for _ in range(parallel):
            tasks.create_task(work())


async def put_rules(stage: Stage) -> None:
    async def send(client: httpx.AsyncClient, number: int) -> httpx.Response:
        rules = [{"pattern": ["delete_*"], "enabled": False}, {"pattern": ["*"], "tags": [f"tag-{number % 2}"]}]
        return await client.put("/rules", json={"rules": rules})

    await send_in_parallel(stage, send, PARALLEL_RULES)


async def search_sent_tools(stage: Stage) -> None:
    async def send(client: httpx.AsyncClient, number: int) -> httpx.Response:
        numbers = range(number * SENT_TOOLS, (number + 1) * SENT_TOOLS)
        tools = [
            {"toolKey": str(n), "toolName": f"tool_{n}", "serverName": "sent", "description": make_question(n)}
            for n in numbers
        ]
        return await client.post("/catalog/search", json={"query": [MESSAGE], "tools": tools})

    await send_in_parallel(stage, send, SEARCHES)


async def flood(stage: Stage) -> None:
    async def send(client: httpx.AsyncClient, _number: int) -> httpx.Response:
        return await client.post("/discover", json={"query": MESSAGE})

    await send_in_parallel(stage, send, FLOOD_CONNECTIONS)


async def ask_long_questions(stage: Stage, words: int = LONG_WORDS) -> None:
    async def send(client: httpx.AsyncClient, number: int) -> httpx.Response:
        count = words // len(make_question(number).split())
        query = " ".join(make_question(n) for n in range(number * count, (number + 1) * count))
        return await client.post("/discover", json={"query": query})

    await send_in_parallel(stage, send, LONG_QUESTIONS)


async def type_in_console(stage: Stage) -> None:
    async with open_client(stage.service.url, stage.keys.attacker) as client:
        await client.post("/console/sign-in", data={"key": stage.keys.attacker})
        page = (await client.get("/console/try")).text
        token = page.partition('name="csrf-token" content="')[2].partition('"')[0]
        assert token, "the console's page has no CSRF token"
        cookies = dict(client.cookies)

    async def send(client: httpx.AsyncClient, number: int) -> httpx.Response:
        headers = {"X-CSRF-Token": token, "X-Fragment": "1"}
        client.cookies.update(cookies)
        return await client.post("/console/try/answer", data={"query": make_question(number)}, headers=headers)

    await send_in_parallel(stage, send, CONSOLE_CONNECTIONS)


async def index_hanging_provider(stage: Stage) -> None:
    """Register the same silent server for many users, and list its tools again and again."""
    url = f"http://127.0.0.1:{stage.ports.silent}/mcp"

    async def reindex_for_ever(client: httpx.AsyncClient, user: str) -> None:
        headers, body = {"X-User-Id": user}, {"name": "provider", "transport": "streamable_http", "url": url}
        (await client.post("/servers", json=body, headers=headers)).raise_for_status()
        while True:
            with suppress(httpx.HTTPError):
                await client.post("/reindex", headers=headers)
            await asyncio.sleep(1)

    async with open_client(stage.service.url, ADMIN_KEY) as client, asyncio.TaskGroup() as tasks:
        for number in range(HANGING_USERS):
            tasks.create_task(reindex_for_ever(client, f"customer-{number}"))


async def register_unresolved_names(stage: Stage) -> None:
    async def send(client: httpx.AsyncClient, number: int) -> httpx.Response:
        url = f"https://{number}.unresolved.test/mcp"
        body = {"name": f"unresolved-{number}", "transport": "streamable_http", "url": url}
        return await client.post("/servers", json=body)

    await send_in_parallel(stage, send, UNRESOLVED_NAMES)


ATTACKS = [
    Attack("flood", f"one user on {FLOOD_CONNECTIONS} connections, each as fast as it is answered", flood),
    Attack("rules", f"{PARALLEL_RULES} parallel PUT /rules of one user", put_rules),
    Attack("catalog-search", f"{SEARCHES} /catalog/search of {SENT_TOOLS} new tools each", search_sent_tools),
    Attack("long-questions", f"{LONG_QUESTIONS} questions of {LONG_WORDS} words of one user", ask_long_questions),
    Attack(
        "breaker",
        f"the same with {SLOW_WORDS} words, an embedder that takes a millisecond a word, and a budget of 800 ms",
        partial(ask_long_questions, words=SLOW_WORDS),
        settings={"TOOLSCOUT_EMBEDDING_PROVIDER": "python:bench.fairness.slow_embedder:SlowEmbedder"},
        max_ratio=math.inf,  # its one thread may be busy with a long question for longer than that
    ),
    Attack(
        "console",
        f"{CONSOLE_CONNECTIONS} connections of one user that type in the console, with a rate limit of {RATE_LIMIT}/s",
        type_in_console,
        settings={"TOOLSCOUT_RATE_PER_USER": str(RATE_LIMIT)},
        must_refuse=True,
    ),
    Attack(
        "provider",
        f"a provider that hangs for {HANGING_USERS} users, while the victim pushes tools",
        index_hanging_provider,
        victim="push",
    ),
    Attack(
        "dns",
        f"{UNRESOLVED_NAMES} names that never resolve, while the victim registers servers",
        register_unresolved_names,
        victim="register",
        module="bench.fairness.deaf_resolver",
    ),
]
