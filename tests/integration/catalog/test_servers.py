"""Credentials of servers: decrypted for connections, and sealed again with a new key."""

import os

from app.catalog.servers import get_endpoint, reseal_headers
from app.crypto import Sealer
from app.settings import decode_secret_key
from tests.support.clients import new_user
from tests.support.factories import SECRET_KEY, OpenService

HEADERS = {"Authorization": "Bearer canary"}


async def test_the_old_key_is_not_needed_after_a_rotation(open_service: OpenService) -> None:
    former, current = decode_secret_key(SECRET_KEY), os.urandom(32)
    async with open_service() as service, new_user(service) as user:
        fields = {"transport": "sse", "url": "https://mcp.example.com", "enabled": False}
        sealed = await user.add_server("sealed", headers=HEADERS, **fields)
        bare = await user.add_server("bare", **fields)
        async with service.database.system_transaction() as session:
            assert await reseal_headers(session, Sealer(current, [former])) == (1, 1)
            assert await reseal_headers(session, Sealer(current, [former])) == (0, 1)
        async with service.database.transaction(user.id) as session:
            assert (await get_endpoint(session, Sealer(current), user.id, sealed)).headers == HEADERS
            assert (await get_endpoint(session, Sealer(current), user.id, bare)).headers == {}
        assert (await user.http.get(f"/servers/{sealed}")).json()["config_version"] == 1


async def test_a_printed_endpoint_does_not_show_its_credentials(open_service: OpenService) -> None:
    async with open_service() as service, new_user(service) as user:
        fields = {"transport": "sse", "url": "https://mcp.example.com", "enabled": False}
        server_id = await user.add_server("sealed", headers=HEADERS, **fields)
        async with service.database.transaction(user.id) as session:
            assert "canary" not in repr(await get_endpoint(session, service.sealer, user.id, server_id))
