"""Does at once for large users what the service does in the background."""

import asyncio

from app.container import Container
from app.indexing.large_tenants import wait_and_update_large_tenants
from app.local_postgres.database import owner_connection
from tests.support.seed_vectors import owner_url
from tests.support.worker_steps import rows


async def update_large_tenants(container: Container) -> None:
    """Build the indexes of all large users and count their tools, after a pass of the service that runs already."""

    def update() -> None:
        with owner_connection(owner_url(container), autocommit=True) as connection:
            wait_and_update_large_tenants(connection)

    await asyncio.to_thread(update)


async def make_large(container: Container, user_id: str) -> None:
    """Treat a user with a few tools as a large one, until their next index run."""
    await rows(container, "UPDATE users SET ann = true WHERE id = %(user_id)s RETURNING id", user_id=user_id)
    await update_large_tenants(container)
