"""An OpenID Connect provider on loopback, whose keys and answers a test can change."""

import base64
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

from tests.support.http_thread import serve_in_thread

Json = dict[str, Any]
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey

AUDIENCE = "https://tools.example.com/api"
PUBLIC_URL = "http://toolscout"
CLIENT_ID, CLIENT_SECRET = "console", "a secret of the console: with / and +"


@dataclass(frozen=True)
class TestKey:
    __test__ = False

    kid: str | None
    algorithm: str
    private_key: PrivateKey

    @property
    def public_jwk(self) -> Json:
        algorithm = get_default_algorithms()[self.algorithm]
        named = {} if self.kid is None else {"kid": self.kid}
        public: Json = algorithm.to_jwk(self.private_key.public_key(), as_dict=True)
        return public | named | {"use": "sig"}

    @property
    def public_pem(self) -> bytes:
        public_key = self.private_key.public_key()
        return public_key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

    def sign(self, claims: Mapping[str, Any], **headers: Any) -> str:
        named = {} if self.kid is None else {"kid": self.kid}
        return jwt.encode(dict(claims), self.private_key, self.algorithm, headers={"typ": "at+jwt", **named, **headers})


@cache
def make_key(kid: str | None, algorithm: str = "RS256") -> TestKey:
    """Return the same key for the same name: making one takes long."""
    if algorithm.startswith(("RS", "PS")):
        return TestKey(kid, algorithm, rsa.generate_private_key(65537, 2048))
    curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
    if algorithm in curves:
        return TestKey(kid, algorithm, ec.generate_private_key(curves[algorithm]))
    return TestKey(kid, algorithm, ed25519.Ed25519PrivateKey.generate())


@dataclass
class FakeIdentityProvider:
    """Attributes may be changed at any time. `requests` lists the paths that were asked for."""

    port: int = 0
    keys: list[TestKey] = field(default_factory=lambda: [make_key("first")])
    status: int = 200
    """Of every answer."""
    metadata: Json = field(default_factory=dict)
    """Replaces members of the discovery document; None removes one."""
    claims: Json = field(default_factory=lambda: {"sub": "alice", "groups": []})
    """Of the person who signs in."""
    id_token_claims: Json = field(default_factory=dict)
    """Replaces claims of the ID token; None removes one."""
    only_userinfo: bool = False
    """The ID token has no more than `sub`."""
    token_answer: bytes | None = None
    requests: list[str] = field(default_factory=list)
    token_requests: list[tuple[Json, Mapping[str, str]]] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    """Answers wait until it is set."""

    def __post_init__(self) -> None:
        self.gate.set()
        self._nonces: dict[str, str] = {}

    def reset(self) -> None:
        """Forget what was seen, and undo the changes."""
        fresh = FakeIdentityProvider(self.port)
        for each in fields(self):
            setattr(self, each.name, getattr(fresh, each.name))
        self._nonces.clear()

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}/realm"

    def settings(self, **changes: Any) -> Json:
        return {
            "oidc_issuer": self.issuer,
            "oidc_audience": AUDIENCE,
            "oidc_admin_groups": "operators, root",
            "public_url": PUBLIC_URL,
            **changes,
        }

    def make_claims(self, **changes: Any) -> Json:
        """Return the claims of an access token; None removes one."""
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 300, **changes}
        return {name: value for name, value in claims.items() if value is not None}

    def make_token(self, **claims: Any) -> str:
        return self.keys[0].sign(self.make_claims(**claims))

    def authorize(self, url: str) -> dict[str, str]:
        """Do what the provider's pages and a person's browser do; return the query with which the browser returns."""
        query = dict(parse_qsl(urlsplit(url).query))
        assert query["response_type"] == "code"
        assert query["code_challenge_method"] == "S256"
        code = f"code-{len(self._nonces)}"
        self._nonces[code] = query["nonce"]
        return {"code": code, "state": query["state"], "iss": self.issuer}

    def discovery(self) -> Json:
        document = {
            "issuer": self.issuer,
            "jwks_uri": f"{self.issuer}/keys",
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "end_session_endpoint": f"{self.issuer}/sign-out",
            "authorization_response_iss_parameter_supported": True,
            **self.metadata,
        }
        return {name: value for name, value in document.items() if value is not None}

    def exchange(self, form: Mapping[str, str]) -> Json:
        claims = {"sub": self.claims["sub"]} if self.only_userinfo else self.claims
        times = self.make_claims(aud=CLIENT_ID)
        nonce = self._nonces.get(form.get("code", ""), "")
        payload = {**times, **claims, "nonce": nonce, **self.id_token_claims}
        payload = {name: value for name, value in payload.items() if value is not None}
        return {"access_token": "opaque", "token_type": "Bearer", "id_token": self.keys[0].sign(payload, typ="JWT")}

    def answer(self, path: str) -> Json:
        name = path.removeprefix("/realm")
        match name:
            case "/.well-known/openid-configuration":
                return self.discovery()
            case "/keys":
                return {"keys": [key.public_jwk for key in self.keys]}
            case "/userinfo":
                return self.claims
        return {}


def _make_handler(provider: FakeIdentityProvider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            provider.requests.append(urlsplit(self.path).path)
            provider.gate.wait(30)
            self._send(json.dumps(provider.answer(urlsplit(self.path).path)).encode())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            provider.requests.append(self.path)
            provider.token_requests.append((form, {name.lower(): value for name, value in self.headers.items()}))
            provider.gate.wait(30)
            answer = provider.token_answer
            self._send(json.dumps(provider.exchange(form)).encode() if answer is None else answer)

        def _send(self, body: bytes) -> None:
            self.send_response(provider.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@contextmanager
def running_identity_provider() -> Iterator[FakeIdentityProvider]:
    provider = FakeIdentityProvider()
    with serve_in_thread(_make_handler(provider)) as provider.port:
        try:
            yield provider
        finally:
            provider.gate.set()


def encode_part(value: Any) -> str:
    """Return a part of a token."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()
