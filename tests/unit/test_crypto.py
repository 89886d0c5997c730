import os
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from app.crypto import Sealer, SecretOwner
from app.errors import ConfigurationError

OWNER = SecretOwner("alice", "server-1", "headers")
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


@pytest.mark.parametrize("changes", [{"user_id": "bob"}, {"thing_id": "server-2"}, {"field": "env"}])
def test_it_does_not_open_in_another_row(sealer: Sealer, changes: dict[str, str]) -> None:
    sealed = sealer.seal(SECRET, OWNER)
    with pytest.raises(ConfigurationError, match="TOOLSCOUT_SECRET_KEY"):
        sealer.open(sealed, replace(OWNER, **changes))


def test_owners_that_read_the_same_when_joined_are_told_apart(sealer: Sealer) -> None:
    sealed = sealer.seal(SECRET, SecretOwner("a", "bc", "headers"))
    with pytest.raises(ConfigurationError):
        sealer.open(sealed, SecretOwner("ab", "c", "headers"))


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


def test_a_value_of_a_former_key_still_opens_and_new_ones_are_sealed_with_the_current(sealer: Sealer) -> None:
    former, current = os.urandom(32), os.urandom(32)
    old = Sealer(former).seal(SECRET, OWNER)
    rotated = Sealer(current, [former])
    assert rotated.open(old, OWNER) == SECRET
    assert not rotated.is_current(old)
    new = rotated.seal(SECRET, OWNER)
    assert rotated.is_current(new)
    assert Sealer(current).open(new, OWNER) == SECRET
    with pytest.raises(ConfigurationError):
        Sealer(former).open(new, OWNER)


def test_a_value_from_before_values_named_their_key_still_opens() -> None:
    key, nonce = os.urandom(32), os.urandom(12)
    nameless = nonce + AESGCM(key).encrypt(nonce, SECRET, OWNER.as_bytes())
    assert Sealer(key).open(nameless, OWNER) == SECRET
    assert Sealer(os.urandom(32), [key]).open(nameless, OWNER) == SECRET
    assert not Sealer(key).is_current(nameless)


def test_a_fingerprint_tells_texts_apart_and_depends_on_the_key(sealer: Sealer) -> None:
    assert sealer.fingerprint(b"a") == sealer.fingerprint(b"a")
    assert sealer.fingerprint(b"a") != sealer.fingerprint(b"b")
    assert sealer.fingerprint(b"a") != Sealer(os.urandom(32)).fingerprint(b"a")


def test_a_fingerprint_of_a_former_key_is_known_again() -> None:
    former, current = os.urandom(32), os.urandom(32)
    old = Sealer(former).fingerprint(b"a")
    assert Sealer(current, [former]).is_fingerprint(old, b"a")
    assert not Sealer(current, [former]).is_fingerprint(old, b"b")
    assert not Sealer(current).is_fingerprint(old, b"a")


def test_a_shortened_fingerprint_is_known_again_unless_it_is_too_short_to_tell(sealer: Sealer) -> None:
    whole = sealer.fingerprint(b"a")
    assert sealer.is_fingerprint(whole[:7], b"a")
    assert not sealer.is_fingerprint(whole[:7], b"b")
    for length in range(7):
        assert not sealer.is_fingerprint(whole[:length], b"a")
