"""What a read of a scope must have seen before another server than the primary may answer it."""

from datetime import UTC, datetime

from app.auth.users import User
from app.catalog.visibility import Scope
from app.db.engine import Versions

USER = User(
    id="alice",
    name=None,
    settings={},
    discovery_enabled=True,
    discovery_pinned=False,
    catalog_version=7,
    examples_version=3,
    tool_count=0,
    ann=False,
    calibration=None,
    adaptation={},
    groups=(),
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
)


def test_a_read_must_have_seen_the_versions_of_the_authenticated_user_and_the_model() -> None:
    for scope in (Scope("alice", "m"), Scope("alice", "m", server_ids=["s"], tags=["t"], project_id="p")):
        assert scope.get_versions(USER) == Versions(7, 3, "m")


def test_the_versions_do_not_tell_which_tools_are_in_a_category() -> None:
    assert Scope("alice", "m", category_ids=["c"]).get_versions(USER) is None
    assert Scope("alice", "m", category_ids=[]).get_versions(USER) is None
