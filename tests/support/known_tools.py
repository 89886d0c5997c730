"""Tools of the file of known tools, for tests of the service as it ships."""

from collections.abc import Sequence

import numpy as np

from app.container import Container
from app.embeddings.base import Vector
from app.indexing.documents import embedded_text
from app.indexing.known_tools.matching import KnownTool, KnownTools
from app.indexing.known_tools.pack import FILE_NAME, decode_tools
from app.mcp_types import ToolDefinition
from tests.support.clients import TestUser
from tests.support.paths import ROOT
from tests.support.worker_steps import rows


def pick_known_tools(count: int) -> list[KnownTool]:
    """Return tools with several examples, and with names and descriptions that no other known tool has."""
    content = (ROOT / "app" / "indexing" / "known_tools" / FILE_NAME).read_bytes()
    tools = decode_tools(content)
    names = [tool.name.lower() for tool in tools]
    known = KnownTools(tools)
    unique = [
        tool
        for tool in tools
        if len(tool.examples) >= 4
        and names.count(tool.name.lower()) == 1
        and known.find_examples(tool.name, tool.description) == tool.examples
    ]
    return unique[:: len(unique) // count][:count]


def document_of(known: KnownTool, server: str) -> str:
    """Return the text that is embedded of the tool if a server lists it without parameters."""
    return embedded_text(ToolDefinition(known.name, None, known.description, {}, None, None, None), server)


def unit_vector(values: Sequence[float]) -> Vector:
    vector = np.array(values, np.float32)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


async def measure_stored_similarity(container: Container, user: TestUser, model: str, expected: Vector) -> float:
    """Return the cosine of this vector and that of the user's only tool."""
    statement = """
        SELECT 1 - (embedding <=> %(vector)s::halfvec) FROM mcp_tool_embeddings
        WHERE user_id = %(user)s AND model = %(model)s
    """
    [(similarity,)] = await rows(container, statement, user=user.id, model=model, vector=str(expected.tolist()))
    return float(similarity)
