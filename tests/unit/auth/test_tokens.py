"""Keys and tokens of the identity provider, and what their claims say."""

import base64
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from app.auth.oidc.claims import read_identity
from app.auth.oidc.config import OidcConfig
from app.auth.oidc.tokens import is_token, matches_hash, parse_signing_keys
from app.errors import Unauthenticated
from tests.support.identity_provider import TestKey, encode_part, make_key

CONFIG = OidcConfig("https://login.example.com", "tools", None, admin_groups=frozenset({"operators"}))
HEADER = encode_part({"alg": "RS256"})


@pytest.mark.parametrize(
    ("algorithm", "algorithms"),
    [
        ("RS256", ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")),
        ("ES256", ("ES256",)),
        ("ES384", ("ES384",)),
        ("ES512", ("ES512",)),
        ("EdDSA", ("EdDSA",)),
    ],
)
def test_the_type_of_a_key_decides_on_its_algorithms(algorithm: str, algorithms: tuple[str, ...]) -> None:
    jwk = {**make_key("a", algorithm).public_jwk}
    jwk.pop("alg", None)
    [key] = parse_signing_keys({"keys": [jwk]})
    assert (key.kid, key.algorithms) == ("a", algorithms)


def test_a_key_that_names_its_algorithm_verifies_no_other() -> None:
    [key] = parse_signing_keys({"keys": [make_key("a").public_jwk | {"alg": "PS256"}]})
    assert key.algorithms == ("PS256",)


SHORT = TestKey("short", "RS256", rsa.generate_private_key(65537, 1024))  # noqa: S505 it is to be refused
UNUSABLE: list[Any] = [
    {"kty": "oct", "k": base64.urlsafe_b64encode(b"s" * 32).decode(), "kid": "a"},
    make_key("a").public_jwk | {"use": "enc"},
    make_key("a").public_jwk | {"alg": "HS256"},
    make_key("a").public_jwk | {"alg": "none"},
    make_key("a").public_jwk | {"alg": "ES256"},
    make_key("a").public_jwk | {"kid": 7},
    make_key("a").public_jwk | {"d": "AQAB"},
    make_key("a").public_jwk | {"n": "not base64!"},
    make_key("a", "ES256").public_jwk | {"crv": "P-384"},
    make_key("a", "ES256").public_jwk | {"crv": "secp256k1"},
    make_key("a", "EdDSA").public_jwk | {"x": ""},
    {"kty": ["RSA"]},
    {},
    "RSA",
    None,
    SHORT.public_jwk,
]


@pytest.mark.parametrize("entry", UNUSABLE, ids=range(len(UNUSABLE)))
def test_a_key_that_cannot_be_used_is_left_out_alone(entry: Any) -> None:
    keys = parse_signing_keys({"keys": [entry, make_key("good").public_jwk]})
    assert [key.kid for key in keys] == ["good"]


@pytest.mark.parametrize("key_set", [None, [], {}, {"keys": None}, {"keys": {}}, "keys"])
def test_what_is_no_key_set_has_no_keys(key_set: Any) -> None:
    assert parse_signing_keys(key_set) == ()


@pytest.mark.parametrize("text", [f"{HEADER}.e30.c2ln", f"{HEADER}.e30.", f"{encode_part({})}.."])
def test_a_token_is_recognized(text: str) -> None:
    assert is_token(text)


@pytest.mark.parametrize(
    "text",
    [
        "ts_user_abc",
        "eyes.of.tigers",
        "",
        "..",
        "e30=.a.b",
        f"{HEADER}.e30",
        f"{HEADER}.e30.a.b",
        f"{HEADER}.e 30.a",
        f"{HEADER}.é.x",
        f"{encode_part([])}.a.b",
        f"{encode_part('x')}.a.b",
        "e" * 100_000 + ".a.b",
    ],
)
def test_an_api_key_is_not_taken_for_a_token(text: str) -> None:
    assert not is_token(text)


def test_the_hash_of_an_access_token_is_that_of_the_specification() -> None:
    """The example of OpenID Connect Core 1.0, appendix A.3."""
    token, expected = "jHkWEdUXMU1BwAsC4vtUsZwnNvTIxEl0z9K3vx5KF0Y", "77QmUPtjPfzWtF2AnpK9RQ"
    assert matches_hash(token, expected, "RS256")
    assert not matches_hash(token, expected, "RS384")
    assert not matches_hash(token + "x", expected, "RS256")
    assert not matches_hash(token, None, "RS256")


@pytest.mark.parametrize(
    ("claims", "groups", "is_admin"),
    [
        ({"groups": ["operators", "a"]}, ("a", "operators"), True),
        ({"groups": "operators"}, ("operators",), True),
        ({"groups": ["Operators"]}, ("Operators",), False),
        ({"groups": ["operators "]}, ("operators ",), False),
        ({"groups": [["operators"], {"operators": 1}, "nul\0"]}, (), False),
        ({"groups": {"operators": True}}, (), False),
        ({"roles": ["operators"]}, (), False),
        ({}, (), False),
    ],
)
def test_groups_decide_who_is_an_administrator(claims: dict[str, Any], groups: tuple[str, ...], is_admin: bool) -> None:
    identity = read_identity({"sub": "alice", **claims}, CONFIG)
    assert (identity.user_id, identity.groups, identity.is_admin) == ("alice", groups, is_admin)


def test_without_admin_groups_nobody_is_an_administrator() -> None:
    config = OidcConfig("https://login.example.com", "tools", None)
    assert not read_identity({"sub": "alice", "groups": ["", "operators"]}, config).is_admin


@pytest.mark.parametrize("user_id", [None, "", 7, ["alice"], "a/b", "-a", "x" * 129, "*"])
def test_a_user_id_that_is_not_allowed_is_refused(user_id: Any) -> None:
    with pytest.raises(Unauthenticated, match="does not name a user"):
        read_identity({"sub": user_id}, CONFIG)


def test_groups_can_be_within_an_object() -> None:
    config = OidcConfig("https://login.example.com", "tools", None, groups_claim="realm_access.roles")
    assert read_identity({"sub": "a", "realm_access": {"roles": ["x"]}}, config).groups == ("x",)
    assert read_identity({"sub": "a", "realm_access": ["roles"]}, config).groups == ()
