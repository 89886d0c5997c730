import os
from dataclasses import replace

import pytest

from app.errors import ConfigurationError
from app.sealing import Owner, Sealer

OWNER = Owner("alice", "server-1", "headers")
SECRET = b'{"Authorization": "Bearer canary"}'


@pytest.fixture
def sealer() -> Sealer:
    return Sealer(os.urandom(32))


def test_what_is_sealed_opens_for_its_owner(sealer: Sealer) -> None:
    assert sealer.open(sealer.seal(SECRET, OWNER), OWNER) == SECRET


def test_an_empty_secret_can_be_sealed_too(sealer: Sealer) -> None:
    assert sealer.open(sealer.seal(b"", OWNER), OWNER) == b""


def test_the_sealed_bytes_tell_nothing_and_differ_every_time(sealer: Sealer) -> None:
    first, second = sealer.seal(SECRET, OWNER), sealer.seal(SECRET, OWNER)
    assert b"canary" not in first
    assert first != second


@pytest.mark.parametrize("changes", [{"user_id": "bob"}, {"server_id": "server-2"}, {"field": "env"}])
def test_it_does_not_open_in_another_row(sealer: Sealer, changes: dict[str, str]) -> None:
    sealed = sealer.seal(SECRET, OWNER)
    with pytest.raises(ConfigurationError, match="TOOLSCOUT_SECRET_KEY"):
        sealer.open(sealed, replace(OWNER, **changes))


def test_owners_that_read_the_same_when_joined_are_told_apart(sealer: Sealer) -> None:
    sealed = sealer.seal(SECRET, Owner("a", "bc", "headers"))
    with pytest.raises(ConfigurationError):
        sealer.open(sealed, Owner("ab", "c", "headers"))


def test_it_does_not_open_with_another_key(sealer: Sealer) -> None:
    with pytest.raises(ConfigurationError):
        Sealer(os.urandom(32)).open(sealer.seal(SECRET, OWNER), OWNER)


@pytest.mark.parametrize("place", [0, 11, 12, -1], ids=["nonce", "end of nonce", "first byte", "tag"])
def test_a_single_changed_bit_is_noticed(sealer: Sealer, place: int) -> None:
    tampered = bytearray(sealer.seal(SECRET, OWNER))
    tampered[place] ^= 1
    with pytest.raises(ConfigurationError):
        sealer.open(bytes(tampered), OWNER)


@pytest.mark.parametrize("length", [0, 5, 12, 27, 40])
def test_a_truncated_value_is_refused_and_not_a_crash(sealer: Sealer, length: int) -> None:
    with pytest.raises(ConfigurationError):
        sealer.open(sealer.seal(SECRET, OWNER)[:length], OWNER)
