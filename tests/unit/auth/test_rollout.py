"""Who is in the roll-out: the global switch, then the user's own flag, then the percentage."""

import hashlib
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from app.auth.rollout import DecidedBy, Rollout, compute_position
from app.auth.users import User

USER_IDS = [f"user-{number}" for number in range(2_000)]


def make_user(user_id: str = "alice", *, enabled: bool = True, pinned: bool = False) -> User:
    return User(
        id=user_id,
        name=None,
        settings={},
        discovery_enabled=enabled,
        discovery_pinned=pinned,
        catalog_version=1,
        examples_version=0,
        tool_count=0,
        ann=False,
        calibration=None,
        adaptation={},
        groups=(),
        created_at=datetime.now(UTC),
    )


def included(percent: float) -> set[str]:
    return {user_id for user_id in USER_IDS if Rollout(percent=percent).includes(make_user(user_id))}


def test_raising_the_percentage_only_adds_users() -> None:
    shares = [included(percent) for percent in (0, 0.5, 10, 50, 99, 100)]
    assert all(fewer <= more for fewer, more in pairwise(shares))
    assert (len(shares[0]), len(shares[-1])) == (0, len(USER_IDS))


@pytest.mark.parametrize("percent", [1, 10, 50, 90])
def test_the_share_of_users_is_about_the_percentage(percent: float) -> None:
    assert len(included(percent)) / len(USER_IDS) * 100 == pytest.approx(percent, abs=3)


def test_the_position_is_the_documented_one() -> None:
    """Operators compute it elsewhere, and it must never change."""
    assert compute_position("alice") == int(hashlib.sha256(b"alice").hexdigest()[:8], 16) % 10_000 / 100
    assert compute_position("alice") == 78.01


@pytest.mark.parametrize(
    ("rollout", "user", "expected", "decided_by"),
    [
        (Rollout(), make_user(), True, "percent"),
        (Rollout(percent=0), make_user(), False, "percent"),
        (Rollout(percent=0), make_user(pinned=True), True, "user"),
        (Rollout(), make_user(enabled=False, pinned=True), False, "user"),
        (Rollout(), make_user(enabled=False), False, "user"),
        (Rollout(enabled=False), make_user(), False, "global"),
        (Rollout(enabled=False), make_user(pinned=True), False, "global"),
    ],
)
def test_the_flag_of_a_user_beats_the_percentage_and_the_global_switch_beats_both(
    rollout: Rollout, user: User, *, expected: bool, decided_by: DecidedBy
) -> None:
    assert (rollout.includes(user), rollout.decided_by(user)) == (expected, decided_by)
