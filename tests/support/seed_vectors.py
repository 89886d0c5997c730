"""Inserts users whose vectors are known, without the embedder: an exact search in numpy needs the same vectors."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import psycopg
from pgvector import HalfVector, SparseVector
from pgvector.psycopg import register_vector

from app.container import Container
from app.db.tables import TERM_SPACE

Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True)
class KnownUser:
    id: str
    names: Sequence[str]
    vectors: Matrix

    def nearest(self, query: npt.NDArray[np.float32], k: int) -> list[str]:
        """Return the names of the k nearest tools: cosines of the stored half-precision vectors, ties by name."""
        stored = self.vectors.astype(np.float16).astype(np.float64)
        half_query = query.astype(np.float16).astype(np.float64)
        cosines = stored @ half_query / (np.linalg.norm(stored, axis=1) * np.linalg.norm(half_query))
        order = sorted(range(len(self.names)), key=lambda i: (-cosines[i], self.names[i]))
        return [self.names[i] for i in order[:k]]


def owner_url(container: Container) -> str:
    return container.database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)


def owner_connection(container: Container) -> psycopg.Connection[tuple[object, ...]]:
    connection = psycopg.connect(owner_url(container), autocommit=True)
    register_vector(connection)
    return connection


def add_user(container: Container, names: Sequence[str], vectors: Matrix) -> KnownUser:
    """Insert a user with one server, `shared`, that has these tools."""
    user, server = f"user-{uuid.uuid4().hex[:12]}", str(uuid.uuid4())
    ids = [str(uuid.uuid5(uuid.UUID(server), name)) for name in names]
    with owner_connection(container) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO users (id, tool_count) VALUES (%s, %s)", (user, len(names)))
        cursor.execute(
            "INSERT INTO mcp_servers (user_id, id, name, transport) VALUES (%s, %s, 'shared', 'push')", (user, server)
        )
        cursor.executemany(
            "INSERT INTO mcp_tools (user_id, id, server_id, name, description, input_schema, definition_hash,"
            " index_hash, approved_hash,"
            " enriched_description, tokens) VALUES (%s, %s, %s, %s, '', '{}', '', '', '', '', 1)",
            [(user, tool_id, server, name) for tool_id, name in zip(ids, names, strict=True)],
        )
        cursor.executemany(
            "INSERT INTO mcp_tool_embeddings (user_id, model, tool_id, server_id, server_name, tool_name, embedding,"
            " content_hash, lexical, tokens, enabled, tags)"
            " VALUES (%s, %s, %s, %s, 'shared', %s, %s, '', %s, 1, true, '{}')",
            [
                (user, container.model.id, tool_id, server, name, HalfVector(vector), SparseVector({}, TERM_SPACE))
                for tool_id, name, vector in zip(ids, names, vectors, strict=True)
            ],
        )
    return KnownUser(user, names, vectors)
