"""What many tests of calls ask: is this the problem it should be, and is that what became of it."""

import json
from typing import Any

import httpx

from app.container import Container
from app.execution.validation import check_arguments, usable_schema

Json = dict[str, Any]


def failed(answer: httpx.Response, status: int, code: str) -> Json:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: Json = answer.json()
    assert body["code"] == code
    assert body["request_id"] == answer.headers["x-request-id"]
    return body


def succeeded(answer: httpx.Response) -> Json:
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


def text(answer: httpx.Response) -> str:
    """Of a result that is one text."""
    [block] = succeeded(answer)["result"]["content"]
    said: str = block["text"]
    return said


def check(schema: Json, arguments: Json) -> None:
    """As a call does it."""
    check_arguments(usable_schema(json.dumps(schema)), arguments)


async def executions(container: Container, user_id: str) -> list[tuple[Any, ...]]:
    """The outcome and target of each, oldest first."""
    statement = (
        "SELECT outcome, target FROM audit_events"
        " WHERE user_id = %(user_id)s AND action = 'tool.execute' ORDER BY at, id"
    )
    async with container.database.transaction(user_id) as session:
        return await session.rows(statement, {"user_id": user_id})
