"""Write texts of one's own for a tool, as the tests of all interfaces do."""

from typing import Any

from tests.support.clients import TestUser
from tests.support.worker_steps import finished

Json = dict[str, Any]


async def edit_tool(user: TestUser, name: str, **changes: Any) -> Json:
    """Change a tool, wait until the run that this queues has succeeded, and return the answer."""
    answer = await user.http.patch(f"/tools/{(await user.tools())[name]['id']}", json=changes)
    assert answer.status_code == 200, answer.text
    changed: Json = answer.json()
    if changed["run_id"] is not None:
        run = await finished(user, changed["run_id"])
        assert run["state"] == "succeeded", run
    return changed
