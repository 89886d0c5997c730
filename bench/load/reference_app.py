"""What a request costs at least: an empty FastAPI endpoint, and one exact pgvector query through plain psycopg.

`python -m bench.load.reference_app PORT DATABASE_URL USER`, with uvicorn as Toolscout runs it and one worker. Both take
the body of `/discover`. The query returns the eight nearest tools of the user with their definitions. It has no
authentication, no row-level security and no words, and the message's vector is given.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import psycopg
import uvicorn
from fastapi import FastAPI, Response
from pgvector.psycopg import register_vector_async
from pydantic import BaseModel

CONNECTIONS = 10
NEAREST = """
SELECT t.id, t.name, t.description, t.input_schema, nearest.server_name, 1 - nearest.distance
FROM (
    SELECT tool_id, server_name, tool_name, (embedding <=> %(vector)s) + 0 AS distance FROM mcp_tool_embeddings
    WHERE user_id = %(user)s AND model = %(model)s AND enabled
    ORDER BY distance, server_name, tool_name LIMIT 8
) nearest JOIN mcp_tools t ON t.user_id = %(user)s AND t.id = nearest.tool_id
ORDER BY nearest.distance
"""
ANY_VECTOR = "SELECT model, embedding FROM mcp_tool_embeddings WHERE user_id = %s ORDER BY tool_id LIMIT 1"


class Question(BaseModel):
    query: str


def create_app(database_url: str, user: str) -> FastAPI:
    idle: asyncio.Queue[psycopg.AsyncConnection[tuple[Any, ...]]] = asyncio.Queue()
    parameters: dict[str, Any] = {"user": user}

    @asynccontextmanager
    async def open_connections(_app: FastAPI) -> AsyncIterator[None]:
        connections = [await psycopg.AsyncConnection.connect(database_url, autocommit=True) for _ in range(CONNECTIONS)]
        for connection in connections:
            await register_vector_async(connection)
            connection.prepare_threshold = 0
            idle.put_nowait(connection)
        cursor = await connections[0].execute(ANY_VECTOR, [user])
        [(parameters["model"], parameters["vector"])] = await cursor.fetchall()
        yield
        for connection in connections:
            await connection.close()

    app = FastAPI(lifespan=open_connections)

    @app.post("/empty")
    async def empty(question: Question) -> dict[str, bool]:  # noqa: ARG001 it is validated
        return {}

    @app.post("/search")
    async def search(question: Question) -> Response:  # noqa: ARG001 its vector is given
        connection = await idle.get()
        try:
            cursor = await connection.execute(NEAREST, parameters, binary=True)
            rows = await cursor.fetchall()
        finally:
            idle.put_nowait(connection)
        names = ("id", "name", "description", "inputSchema", "server", "similarity")
        tools = [dict(zip(names, row, strict=True)) for row in rows]
        return Response(orjson.dumps({"tools": tools}), media_type="application/json")

    return app


if __name__ == "__main__":
    port, database_url, user = sys.argv[1:]
    app = create_app(database_url, user)
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_config=None, access_log=False, server_header=False)
