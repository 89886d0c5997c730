"""A database in which the search fails and everything else works."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg

from app.auth.users import raise_all_catalog_versions
from app.container import Container


@asynccontextmanager
async def broken_search(container: Container) -> AsyncIterator[None]:
    """Rename a column that the search needs; visible tools can still be listed.

    A search in memory still works: see `outdate_snapshots`.
    """
    url = container.database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    rename = "ALTER TABLE mcp_tool_embeddings RENAME COLUMN {} TO {}"
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as owner:
        await owner.execute(rename.format("lexical", "away").encode())
        try:
            yield
        finally:
            await owner.execute(rename.format("away", "lexical").encode())


async def outdate_snapshots(container: Container) -> None:
    """Give every user's catalogue a new version, so that the next search is not in memory."""
    async with container.database.system_transaction() as session:
        await raise_all_catalog_versions(session)
