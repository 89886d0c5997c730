"""What a member sees of a shared server in the console."""

import httpx

from app.container import Container
from tests.support.clients import TestUser
from tests.support.console_client import open_console
from tests.support.shared_servers import list_shared, settle, share


async def test_a_shared_server_has_a_badge_and_no_buttons_that_change_it(
    service: Container, admin: httpx.AsyncClient, member: TestUser
) -> None:
    own_id = await member.add_server("own")
    await share(admin, "wiki", user_ids=[member.id])
    await settle(service)
    copy_id = (await list_shared(member))["wiki"]["id"]
    async with open_console(service, member.key) as console:
        assert (await console.get_page("/console/servers")).count(">shared</span>") == 1
        own, copy = [await console.get_page(f"/console/servers/{each}") for each in (own_id, copy_id)]
        for path in ("change", "switch", "delete"):
            assert f"/console/servers/{own_id}/{path}" in own
            assert f"/console/servers/{copy_id}/{path}" not in copy
        assert "An administrator manages this server" in copy
        for path in ("delete", "switch"):
            assert (await console.submit(f"/console/servers/{copy_id}/{path}")).status_code == 403
            assert (await console.submit(f"/console/servers/{own_id}/{path}")).status_code in (303, 404)
    assert set(await list_shared(member)) == {"wiki"}
