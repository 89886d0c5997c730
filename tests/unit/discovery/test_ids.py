"""Discovery ids: every replica verifies an id of its user, and no other."""

import os
import uuid
from collections.abc import Callable

import pytest

from app.crypto import Sealer
from app.discovery.ids import new_discovery_id, read_discovery_id

NOW = 1_800_000_000.0
DAY = 86_400.0
KEY = os.urandom(32)


@pytest.fixture
def sealer() -> Sealer:
    return Sealer(KEY)


def test_an_id_is_a_unique_uuid_of_version_8(sealer: Sealer) -> None:
    ids = {new_discovery_id(sealer, "alice", now=NOW) for _ in range(200)}
    assert len(ids) == 200
    for each in ids:
        parsed = uuid.UUID(each)
        assert (str(parsed), parsed.version, parsed.variant) == (each, 8, uuid.RFC_4122)


def test_every_replica_verifies_an_id_for_its_user_only(sealer: Sealer) -> None:
    made = new_discovery_id(sealer, "alice")
    assert read_discovery_id(Sealer(KEY), made, "alice")
    assert not read_discovery_id(Sealer(KEY), made, "bob")
    assert not read_discovery_id(Sealer(os.urandom(32)), made, "alice")


def test_an_id_stays_valid_when_the_secret_key_changes(sealer: Sealer) -> None:
    made = new_discovery_id(sealer, "alice")
    assert read_discovery_id(Sealer(os.urandom(32), [KEY]), made, "alice")


def test_a_change_of_any_bit_is_detected(sealer: Sealer) -> None:
    made = uuid.UUID(new_discovery_id(sealer, "alice", now=NOW))
    for bit in range(128):
        assert not read_discovery_id(sealer, str(uuid.UUID(int=made.int ^ (1 << bit))), "alice", NOW)
    assert read_discovery_id(sealer, str(made), "alice", NOW)


def test_an_id_is_valid_for_as_long_as_its_feedback_is_kept(sealer: Sealer) -> None:
    made = new_discovery_id(sealer, "alice", now=NOW)
    assert read_discovery_id(sealer, made, "alice", NOW + 29 * DAY)
    assert not read_discovery_id(sealer, made, "alice", NOW + 31 * DAY)
    assert read_discovery_id(sealer, made, "alice", NOW - 60)  # clocks of replicas differ


@pytest.mark.parametrize("respell", [str.upper, "{{{}}}".format, "urn:uuid:{}".format, lambda i: i.replace("-", "")])
def test_another_spelling_is_rejected(sealer: Sealer, respell: Callable[[str], str]) -> None:
    made = new_discovery_id(sealer, "alice")
    assert not read_discovery_id(sealer, respell(made), "alice")
    assert read_discovery_id(sealer, made, "alice")


INVENTED = ["", "x", "0" * 36, "7d444840-9dc0-41d1-b245-5ffdce74fad2", str(uuid.UUID(int=0)), "é" * 36]


@pytest.mark.parametrize("invented", INVENTED)
def test_an_invented_id_is_rejected(sealer: Sealer, invented: str) -> None:
    assert not read_discovery_id(sealer, invented, "alice")


@pytest.mark.parametrize("chance", [0.002, 0.03, 0.2, 0.5, 0.55, 0.9, 0.998])
def test_an_id_says_about_how_likely_it_was_that_a_tool_fits(sealer: Sealer, chance: float) -> None:
    found = read_discovery_id(sealer, new_discovery_id(sealer, "alice", chance), "alice")
    assert found is not None
    assert found.chance == pytest.approx(chance, rel=0.11)


@pytest.mark.parametrize("chance", [None, 0.0, 1.0])
def test_an_id_can_leave_the_chance_open(sealer: Sealer, chance: float | None) -> None:
    found = read_discovery_id(sealer, new_discovery_id(sealer, "alice", chance), "alice")
    assert found is not None
    assert found.chance is None


def test_extreme_chances_are_within_the_range_of_an_id(sealer: Sealer) -> None:
    for chance, nearest in ((1e-9, 0.002), (1 - 1e-9, 0.998)):
        found = read_discovery_id(sealer, new_discovery_id(sealer, "alice", chance), "alice")
        assert found is not None
        assert found.chance == pytest.approx(nearest, rel=0.02)


def test_an_id_of_the_old_layout_is_valid(sealer: Sealer) -> None:
    """Version 0.2.0 had random bits where the chance is now: any of them can be read."""
    chances = set()
    for level in range(64):
        payload = int(NOW).to_bytes(4) + os.urandom(2) + bytes([0x80, 7, 0x80 | level])
        fingerprint = sealer.fingerprint(b"discovery" + payload + b"alice")[:7]
        old = str(uuid.UUID(bytes=payload + fingerprint))
        found = read_discovery_id(sealer, old, "alice", NOW)
        assert found is not None
        assert read_discovery_id(sealer, old, "bob", NOW) is None
        chances.add(found.chance)
    assert len(chances) == 64
    assert all(chance is None or 0 < chance < 1 for chance in chances)
