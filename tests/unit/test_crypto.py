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


def test_a_sealed_value_opens_for_its_owner(sealer: Sealer) -> None:
    assert sealer.open(sealer.seal(SECRET, OWNER), OWNER) == SECRET


def test_an_empty_secret_can_be_sealed(sealer: Sealer) -> None:
    assert sealer.open(sealer.seal(b"", OWNER), OWNER) == b""


def test_sealed_bytes_reveal_nothing_and_differ_every_time(sealer: Sealer) -> None:
    first, second = sealer.seal(SECRET, OWNER), sealer.seal(SECRET, OWNER)
    assert b"canary" not in first
    assert first != second


@pytest.mark.parametrize("changes", [{"user_id": "bob"}, {"record_id": "server-2"}, {"field": "env"}])
def test_a_sealed_value_does_not_open_for_another_owner(sealer: Sealer, changes: dict[str, str]) -> None:
    sealed = sealer.seal(SECRET, OWNER)
    with pytest.raises(ConfigurationError, match="TOOLSCOUT_SECRET_KEY"):
        sealer.open(sealed, replace(OWNER, **changes))


def test_owners_that_are_equal_when_concatenated_are_distinct(sealer: Sealer) -> None:
    sealed = sealer.seal(SECRET, SecretOwner("a", "bc", "headers"))
    with pytest.raises(ConfigurationError):
        sealer.open(sealed, SecretOwner("ab", "c", "headers"))


def test_a_sealed_value_does_not_open_with_another_key(sealer: Sealer) -> None:
    with pytest.raises(ConfigurationError):
        Sealer(os.urandom(32)).open(sealer.seal(SECRET, OWNER), OWNER)


@pytest.mark.parametrize("position", [0, 11, 12, -1], ids=["nonce", "end of nonce", "first byte", "tag"])
def test_a_single_changed_bit_is_detected(sealer: Sealer, position: int) -> None:
    tampered = bytearray(sealer.seal(SECRET, OWNER))
    tampered[position] ^= 1
    with pytest.raises(ConfigurationError):
        sealer.open(bytes(tampered), OWNER)


@pytest.mark.parametrize("length", [0, 5, 12, 27, 40])
def test_a_truncated_value_is_rejected(sealer: Sealer, length: int) -> None:
    with pytest.raises(ConfigurationError):
        sealer.open(sealer.seal(SECRET, OWNER)[:length], OWNER)


def test_values_of_a_former_key_open_and_new_values_use_the_current_key(sealer: Sealer) -> None:
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


def test_an_old_value_without_a_key_id_opens() -> None:
    key, nonce = os.urandom(32), os.urandom(12)
    without_key_id = nonce + AESGCM(key).encrypt(nonce, SECRET, OWNER.as_bytes())
    assert Sealer(key).open(without_key_id, OWNER) == SECRET
    assert Sealer(os.urandom(32), [key]).open(without_key_id, OWNER) == SECRET
    assert not Sealer(key).is_current(without_key_id)


def test_a_fingerprint_depends_on_the_text_and_the_key(sealer: Sealer) -> None:
    assert sealer.fingerprint(b"a") == sealer.fingerprint(b"a")
    assert sealer.fingerprint(b"a") != sealer.fingerprint(b"b")
    assert sealer.fingerprint(b"a") != Sealer(os.urandom(32)).fingerprint(b"a")


def test_a_fingerprint_of_a_former_key_matches() -> None:
    former, current = os.urandom(32), os.urandom(32)
    old = Sealer(former).fingerprint(b"a")
    assert Sealer(current, [former]).matches_fingerprint(old, b"a")
    assert not Sealer(current, [former]).matches_fingerprint(old, b"b")
    assert not Sealer(current).matches_fingerprint(old, b"a")


def test_a_truncated_fingerprint_matches_unless_it_is_too_short(sealer: Sealer) -> None:
    whole = sealer.fingerprint(b"a")
    assert sealer.matches_fingerprint(whole[:7], b"a")
    assert not sealer.matches_fingerprint(whole[:7], b"b")
    for length in range(7):
        assert not sealer.matches_fingerprint(whole[:length], b"a")
