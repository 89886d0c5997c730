"""Discovery ids: every replica verifies an id of its user, and no other."""

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


def test_an_id_is_a_unique_uuid_of_version_8(sealer: Sealer) -> None:
    ids = {new_discovery_id(sealer, "alice", NOW) for _ in range(2_000)}
    assert len(ids) == 2_000
    for each in ids:
        parsed = uuid.UUID(each)
        assert (str(parsed), parsed.version, parsed.variant) == (each, 8, uuid.RFC_4122)


def test_every_replica_verifies_an_id_for_its_user_only(sealer: Sealer) -> None:
    made = new_discovery_id(sealer, "alice")
    assert verify_discovery_id(Sealer(KEY), made, "alice")
    assert not verify_discovery_id(Sealer(KEY), made, "bob")
    assert not verify_discovery_id(Sealer(os.urandom(32)), made, "alice")


def test_an_id_stays_valid_when_the_secret_key_changes(sealer: Sealer) -> None:
    made = new_discovery_id(sealer, "alice")
    assert verify_discovery_id(Sealer(os.urandom(32), [KEY]), made, "alice")


def test_a_change_of_any_bit_is_detected(sealer: Sealer) -> None:
    made = uuid.UUID(new_discovery_id(sealer, "alice", NOW))
    for bit in range(128):
        assert not verify_discovery_id(sealer, str(uuid.UUID(int=made.int ^ (1 << bit))), "alice", NOW)
    assert verify_discovery_id(sealer, str(made), "alice", NOW)


def test_an_id_is_valid_for_as_long_as_its_feedback_is_kept(sealer: Sealer) -> None:
    made = new_discovery_id(sealer, "alice", NOW)
    assert verify_discovery_id(sealer, made, "alice", NOW + 29 * DAY)
    assert not verify_discovery_id(sealer, made, "alice", NOW + 31 * DAY)
    assert verify_discovery_id(sealer, made, "alice", NOW - 60)  # clocks of replicas differ


@pytest.mark.parametrize("respell", [str.upper, "{{{}}}".format, "urn:uuid:{}".format, lambda i: i.replace("-", "")])
def test_another_spelling_is_rejected(sealer: Sealer, respell: Callable[[str], str]) -> None:
    made = new_discovery_id(sealer, "alice")
    assert not verify_discovery_id(sealer, respell(made), "alice")
    assert verify_discovery_id(sealer, made, "alice")


INVENTED = ["", "x", "0" * 36, "7d444840-9dc0-41d1-b245-5ffdce74fad2", str(uuid.UUID(int=0)), "é" * 36]


@pytest.mark.parametrize("invented", INVENTED)
def test_an_invented_id_is_rejected(sealer: Sealer, invented: str) -> None:
    assert not verify_discovery_id(sealer, invented, "alice")
