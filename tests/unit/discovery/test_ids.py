"""An id of a discovery is known again, by every replica, as its own user's and nobody else's."""

import os
import uuid
from collections.abc import Callable

import pytest

from app.crypto import Sealer
from app.discovery.ids import new_discovery_id, verify_discovery_id

NOW = 1_800_000_000.0
DAY = 86_400.0
KEY = os.urandom(32)


@pytest.fixture
def sealer() -> Sealer:
    return Sealer(KEY)


def test_an_id_is_a_uuid_of_version_8_and_no_two_are_alike(sealer: Sealer) -> None:
    ids = {new_discovery_id(sealer, "alice", NOW) for _ in range(2_000)}
    assert len(ids) == 2_000
    for each in ids:
        read = uuid.UUID(each)
        assert (str(read), read.version, read.variant) == (each, 8, uuid.RFC_4122)


def test_every_replica_knows_it_as_its_users_and_nobody_elses(sealer: Sealer) -> None:
    made = new_discovery_id(sealer, "alice")
    assert verify_discovery_id(Sealer(KEY), made, "alice")
    assert not verify_discovery_id(Sealer(KEY), made, "bob")
    assert not verify_discovery_id(Sealer(os.urandom(32)), made, "alice")


def test_it_outlives_a_change_of_the_secret_key(sealer: Sealer) -> None:
    made = new_discovery_id(sealer, "alice")
    assert verify_discovery_id(Sealer(os.urandom(32), [KEY]), made, "alice")


def test_a_change_of_any_bit_is_noticed(sealer: Sealer) -> None:
    made = uuid.UUID(new_discovery_id(sealer, "alice", NOW))
    for bit in range(128):
        assert not verify_discovery_id(sealer, str(uuid.UUID(int=made.int ^ (1 << bit))), "alice", NOW)
    assert verify_discovery_id(sealer, str(made), "alice", NOW)


def test_it_is_known_for_as_long_as_what_is_told_of_it(sealer: Sealer) -> None:
    made = new_discovery_id(sealer, "alice", NOW)
    assert verify_discovery_id(sealer, made, "alice", NOW + 29 * DAY)
    assert not verify_discovery_id(sealer, made, "alice", NOW + 31 * DAY)
    assert verify_discovery_id(sealer, made, "alice", NOW - 60)  # clocks of replicas differ


@pytest.mark.parametrize("spelled", [str.upper, "{{{}}}".format, "urn:uuid:{}".format, lambda i: i.replace("-", "")])
def test_there_is_one_spelling(sealer: Sealer, spelled: Callable[[str], str]) -> None:
    made = new_discovery_id(sealer, "alice")
    assert not verify_discovery_id(sealer, spelled(made), "alice")
    assert verify_discovery_id(sealer, made, "alice")


INVENTED = ["", "x", "0" * 36, "7d444840-9dc0-41d1-b245-5ffdce74fad2", str(uuid.UUID(int=0)), "é" * 36]


@pytest.mark.parametrize("invented", INVENTED)
def test_an_invented_one_is_none(sealer: Sealer, invented: str) -> None:
    assert not verify_discovery_id(sealer, invented, "alice")
