"""A user with two categories."""

from app.container import Container
from app.indexing.categories.maker import make_categories
from tests.support.clients import TestUser
from tests.support.factories import tool

EVENTS = [tool(f"{verb}_event", f"{verb.title()} an event of the calendar.") for verb in ("create", "move", "delete")]
BRANCHES = [
    tool(f"{verb}_branch", f"{verb.title()} a branch of a git repository.") for verb in ("create", "list", "rename")
]


async def add_categories(container: Container, user: TestUser) -> dict[str, str]:
    """Give the user two categories, and return their ids by the first words of their names: event and branch."""
    await user.add_tools(*EVENTS, server="calendar")
    await user.add_tools(*BRANCHES, server="code")
    await make_categories(container.database, user.id, container.model.id)
    items = (await user.http.get("/categories")).json()["items"]
    return {each["name"].split(",")[0]: each["id"] for each in items}
