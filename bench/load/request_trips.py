"""Count the round trips to Postgres of single requests, in a service that counts them."""

import time
from pathlib import Path

import httpx

from bench.load.traced_service import HEADER
from bench.load.traffic import MESSAGE, authorize, make_question
from bench.service import running_service

_REPEATS = 5
_PAUSE_S = 0.2
"""Between repeated requests: an earlier one may have started to load something in the background."""


def count_round_trips(folder: Path, users: int) -> dict[str, int]:
    """Return the round trips of a user's first request, of a repeated one, and of one with a new question.

    The first requests of all are those of another user: they open the connections and load what all users share.
    """
    with running_service(folder, module="bench.load.traced_service") as service, service.admin() as admin:
        key = admin.post("/keys", json={"kind": "service"}).raise_for_status().json()["key"]

        def send(user: int, query: str) -> int:
            time.sleep(_PAUSE_S)
            headers = authorize(key, f"user-{user}")
            response = httpx.post(f"{service.url}/discover", json={"query": query}, headers=headers)
            return int(response.raise_for_status().headers[HEADER])

        for _ in range(_REPEATS):
            send(0, MESSAGE)
        first = send(users - 1, MESSAGE)
        repeated = [send(users - 1, MESSAGE) for _ in range(_REPEATS)]
        new = [send(users - 1, make_question(number)) for number in range(_REPEATS)]
    return {"first request of a user": first, "cached question": repeated[-1], "new question": new[-1]}
