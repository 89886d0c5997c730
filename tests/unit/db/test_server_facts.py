"""Which servers may answer in place of the primary."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from app.db.server_facts import ServerFacts, find_problem

PRIMARY = ServerFacts(
    cluster=1,
    database=16_384,
    started_at=datetime(2026, 1, 1, tzinfo=UTC),
    is_replica=False,
    timeline=2,
    position=1_000,
    replay_age_s=None,
    version="18.4",
)
REPLICA = replace(PRIMARY, started_at=datetime(2026, 2, 2, tzinfo=UTC), is_replica=True, position=900, replay_age_s=1.5)


def test_a_replica_on_the_primarys_timeline_may_answer_however_far_behind_it_is() -> None:
    for position in (0, 900, 1_100):
        assert find_problem(PRIMARY, replace(REPLICA, position=position)) is None


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (PRIMARY, "the server of DATABASE_URL itself"),
        (replace(REPLICA, is_replica=False), "it was promoted"),
        (replace(REPLICA, is_replica=False, timeline=3), "it was promoted"),
        (replace(REPLICA, cluster=9), "another database"),
        (replace(REPLICA, cluster=9, is_replica=False), "another database"),
        (replace(REPLICA, database=9), "another database"),
        (replace(REPLICA, timeline=1), "it is on timeline 1, and the primary on 2"),
        (replace(REPLICA, timeline=3), "it is on timeline 3, and the primary on 2"),
    ],
)
def test_any_other_server_may_not(other: ServerFacts, words: str) -> None:
    assert words in str(find_problem(PRIMARY, other))


def test_the_lag_is_what_the_primary_had_written_and_the_replica_has_not_replayed() -> None:
    assert REPLICA.lag_behind(PRIMARY) == 100
    assert replace(REPLICA, position=1_100).lag_behind(PRIMARY) == 0, "it was asked later"
