"""Signed tokens (JWT) and the keys that verify them. The only module that knows PyJWT.

A key decides which algorithms it verifies, never the token alone: otherwise a stranger could sign with a public key as
if it were a shared secret, or not at all.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from app.errors import Unauthenticated

Claims = Mapping[str, Any]

MAX_TOKEN_BYTES = 8 * 1024
LEEWAY_S = 60
"""How far the clocks of the provider and of this machine may differ."""

_MAX_KEYS = 100
_MIN_RSA_BITS = 2048
_TOKEN = re.compile(r"(?P<header>e[A-Za-z0-9_-]*)\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*")
_ALGORITHMS: Mapping[tuple[str, str | None], Sequence[str]] = {
    ("RSA", None): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
ALGORITHMS = frozenset(name for names in _ALGORITHMS.values() for name in names)
_PROBLEMS: Sequence[tuple[type[jwt.PyJWTError], str]] = (
    (jwt.ExpiredSignatureError, "has expired"),
    (jwt.ImmatureSignatureError, "is not valid yet"),
    (jwt.InvalidAudienceError, "is for another audience"),
    (jwt.InvalidIssuerError, "is of another issuer"),
    (jwt.MissingRequiredClaimError, "lacks a claim that it must have: exp, iss or aud"),
    (jwt.InvalidSignatureError, "has a wrong signature"),
)


@dataclass(frozen=True)
class SigningKey:
    kid: str | None
    algorithms: tuple[str, ...]
    public_key: RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey


@dataclass(frozen=True)
class TokenHeader:
    kid: str | None
    algorithm: str
    type: str | None


def is_token(text: str) -> bool:
    """Whether this is a token rather than an API key: three parts in base64url, the first of which is an object."""
    match = _TOKEN.fullmatch(text)
    return match is not None and _decode_header(match["header"][:MAX_TOKEN_BYTES]) is not None


def read_header(token: str) -> TokenHeader:
    """Return the header, which nobody has verified yet. Raise `Unauthenticated` if there is none."""
    header = _decode_header(token.partition(".")[0])
    if header is None:
        raise invalid_token("is not a signed token")
    kid, algorithm, token_type = header.get("kid"), header.get("alg"), header.get("typ")
    if not isinstance(kid, str | None) or not isinstance(algorithm, str) or not isinstance(token_type, str | None):
        raise invalid_token("has an invalid header")
    return TokenHeader(kid, algorithm, token_type)


def verify_token(token: str, key: SigningKey, *, issuer: str, audiences: Collection[str]) -> Claims:
    """Return the claims of a token that the key has signed, for one of the audiences, and that is valid now."""
    try:
        return jwt.decode(
            token,
            key.public_key,
            algorithms=key.algorithms,
            issuer=issuer,
            audience=audiences,
            leeway=LEEWAY_S,
            options={"require": ["exp", "iss", "aud"]},
        )
    except jwt.PyJWTError as error:
        problem = next((words for kind, words in _PROBLEMS if isinstance(error, kind)), "is not valid")
        raise invalid_token(problem) from None
    except (ValueError, TypeError, OverflowError, RecursionError):  # a claim of a wrong type, or nested too deeply
        raise invalid_token("is not valid") from None


def parse_signing_keys(key_set: Any) -> tuple[SigningKey, ...]:
    """Return the usable keys of a JSON Web Key Set. Others, such as keys for encryption, are left out."""
    entries = key_set.get("keys") if isinstance(key_set, dict) else None
    keys = [_parse_key(entry) for entry in entries[:_MAX_KEYS]] if isinstance(entries, list) else []
    return tuple(key for key in keys if key is not None)


def matches_hash(value: str, expected: Any, algorithm: str) -> bool:
    """Check `at_hash`: the left half of the hash that belongs to the algorithm of the token's signature."""
    digest = hashlib.new({"256": "sha256", "384": "sha384"}.get(algorithm[-3:], "sha512"), value.encode()).digest()
    half = base64.urlsafe_b64encode(digest[: len(digest) // 2]).rstrip(b"=")
    return isinstance(expected, str) and hmac.compare_digest(half, expected.encode())


def invalid_token(problem: str) -> Unauthenticated:
    return Unauthenticated(f"the token {problem}")


def _decode_header(part: str) -> dict[str, Any] | None:
    try:
        header = orjson.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (binascii.Error, ValueError):
        return None
    return header if isinstance(header, dict) else None


def _parse_key(entry: Any) -> SigningKey | None:
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or "d" in entry:
        return None
    kind, curve, kid = entry.get("kty"), entry.get("crv"), entry.get("kid")
    algorithms = _ALGORITHMS.get((kind, curve if isinstance(curve, str) else None)) if isinstance(kind, str) else None
    if algorithms is None or not isinstance(kid, str | None):
        return None
    if "alg" in entry:
        algorithms = [name for name in algorithms if name == entry["alg"]]
    try:
        public_key = jwt.PyJWK(entry, algorithms[0]).key if algorithms else None
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if public_key is None or (isinstance(public_key, RSAPublicKey) and public_key.key_size < _MIN_RSA_BITS):
        return None
    return SigningKey(kid, tuple(algorithms), public_key)
