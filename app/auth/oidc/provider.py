"""The identity provider: its metadata and its signing keys, which are cached, and requests to its endpoints.

The operator sets its address, see operator_http.py. The time-out is for the whole of a request.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2
import orjson

from app.auth.oidc.tokens import SigningKey, parse_signing_keys
from app.errors import IdentityProviderDown
from app.operator_http import AnswerTooLarge, make_http_client, read_answer

logger = logging.getLogger("toolscout.auth")

LIFETIME_S = 600.0
"""After this time, metadata and keys are fetched again. A key that the provider removes is refused from then on."""
MAX_STALE_S = 12 * 3600.0
"""For so long they are used while the provider does not answer."""
PAUSE_S = 10.0
"""The least time between two attempts, whatever tokens arrive."""
TIMEOUT_S = 10.0
_MAX_ANSWER_BYTES = 512 * 1024
_MAX_CONNECTIONS = 8
_MAX_WAITING = 200
"""So many requests wait for keys at the same time; strangers can send as many as they like."""


@dataclass(frozen=True)
class ProviderMetadata:
    """The parts of OpenID Connect's discovery document that are used."""

    jwks_uri: str
    authorization_endpoint: str | None
    token_endpoint: str | None
    userinfo_endpoint: str | None
    end_session_endpoint: str | None
    token_auth_methods: Sequence[str]
    sends_issuer: bool
    """Whether its authorization responses name the issuer (RFC 9207)."""


@dataclass(frozen=True)
class ProviderState:
    metadata: ProviderMetadata
    keys: Sequence[SigningKey]
    fetched_at: float

    def find_key(self, kid: str | None, algorithm: str) -> SigningKey | None:
        """Return the key that a token names. A token that names none must leave no choice."""
        fitting = [key for key in self.keys if algorithm in key.algorithms and kid in (None, key.kid)]
        return fitting[0] if fitting and (kid is not None or len(fitting) == 1) else None

    def has_key(self, kid: str | None) -> bool:
        return any(key.kid == kid for key in self.keys)


class IdentityProvider:
    def __init__(self, issuer: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.issuer = issuer
        self._clock = clock
        self._state: ProviderState | None = None
        self._failure: str | None = None
        self._attempted_at = -math.inf
        self._waiting = 0
        self._fetching: asyncio.Task[ProviderState] | None = None
        self._http = make_http_client(_MAX_CONNECTIONS)

    @property
    def warning(self) -> str | None:
        """What `/readyz` says about the provider; None while it answers."""
        if self._failure is None:
            return None
        effect = "tokens are refused" if self._state is None else "its last known keys are used"
        return f"the identity provider (TOOLSCOUT_OIDC_ISSUER) cannot be used: {self._failure}; {effect}"

    def start(self) -> None:
        """Fetch the metadata and the keys now, so that the first token need not wait for them."""
        self._start_fetching()

    async def aclose(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)
        await self._http.aclose()

    async def get_state(self) -> ProviderState:
        """Return metadata and keys. Raise `IdentityProviderDown` if there are none, or only very old ones."""
        state, now = self._state, self._clock()
        if state is None or now - state.fetched_at > MAX_STALE_S:
            return await self._fetch_shared()
        if now - state.fetched_at > LIFETIME_S and self._may_attempt():
            self._start_fetching()  # nobody waits for it: the current keys are good enough
        return state

    async def find_key(self, kid: str | None, algorithm: str) -> SigningKey | None:
        """Return the key that a token names. One that is not known may be new, so the keys are fetched again, but not
        more often than every ten seconds: anybody can invent names of keys."""
        state = await self.get_state()
        if kid is not None and not state.has_key(kid) and (self._fetching is not None or self._may_attempt()):
            try:
                state = await self._fetch_shared()
            except IdentityProviderDown:
                return None
        return state.find_key(kid, algorithm)

    async def post_form(self, url: str, form: Mapping[str, str], auth: tuple[str, str] | None) -> tuple[int, Any]:
        """Return the status and the JSON of the answer."""
        return await self._request("POST", url, data=dict(form), auth=auth or httpx2.USE_CLIENT_DEFAULT)

    async def get_with_token(self, url: str, access_token: str) -> Any:
        status, answer = await self._request("GET", url, headers={"Authorization": f"Bearer {access_token}"})
        return _require_ok(status, answer, url)

    def _may_attempt(self) -> bool:
        return self._fetching is None and self._clock() - self._attempted_at >= PAUSE_S

    async def _fetch_shared(self) -> ProviderState:
        """Wait for the fetch in progress, or for a new one."""
        if self._fetching is None and not self._may_attempt():
            wait_s = PAUSE_S - (self._clock() - self._attempted_at)
            raise IdentityProviderDown(self._failure or "not fetched", retry_after_s=max(1, math.ceil(wait_s)))
        if self._waiting >= _MAX_WAITING:
            raise IdentityProviderDown("too many requests wait for its keys")
        self._waiting += 1
        try:
            # Shielded: the fetch is also for others, who may be more patient.
            return await asyncio.shield(self._start_fetching())
        finally:
            self._waiting -= 1

    def _start_fetching(self) -> asyncio.Task[ProviderState]:
        if self._fetching is None:
            self._attempted_at = self._clock()
            self._fetching = asyncio.create_task(self._fetch())
            self._fetching.add_done_callback(self._finish_fetching)
        return self._fetching

    def _finish_fetching(self, task: asyncio.Task[ProviderState]) -> None:
        self._fetching = None
        if not task.cancelled():
            task.exception()  # the caller gets it; if the caller is gone, asyncio must not log it as unretrieved

    async def _fetch(self) -> ProviderState:
        try:
            url = f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"
            metadata = _parse_metadata(_require_ok(*await self._request("GET", url), url), self.issuer)
            key_set = _require_ok(*await self._request("GET", metadata.jwks_uri), metadata.jwks_uri)
            keys = parse_signing_keys(key_set)
            if not keys:
                raise IdentityProviderDown(f"{metadata.jwks_uri} lists no key that can be used")
        except IdentityProviderDown as error:
            self._failure = error.reason
            logger.warning("identity provider cannot be used: %s", error.reason)
            raise
        self._failure = None
        self._state = ProviderState(metadata, keys, self._clock())
        return self._state

    async def _request(self, method: str, url: str, **options: Any) -> tuple[int, Any]:
        try:
            async with asyncio.timeout(TIMEOUT_S), self._http.stream(method, url, **options) as response:
                return response.status_code, orjson.loads(await read_answer(response, _MAX_ANSWER_BYTES))
        except AnswerTooLarge:
            raise IdentityProviderDown(f"the answer of {url} is too large") from None
        except TimeoutError:
            raise IdentityProviderDown(f"{url} did not answer within {TIMEOUT_S:g} seconds") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise IdentityProviderDown(f"{url} cannot be reached ({type(error).__name__})") from None
        except orjson.JSONDecodeError:
            raise IdentityProviderDown(f"{url} answered {response.status_code} without JSON") from None


def _require_ok(status: int, answer: Any, url: str) -> Any:
    if status != httpx2.codes.OK:
        raise IdentityProviderDown(f"{url} answered with status {status}")
    return answer


def _parse_metadata(document: Any, issuer: str) -> ProviderMetadata:
    if not isinstance(document, dict) or document.get("issuer") != issuer:
        named = document.get("issuer") if isinstance(document, dict) else None
        raise IdentityProviderDown(f"its metadata names the issuer {named!r}: TOOLSCOUT_OIDC_ISSUER must be the same")
    jwks_uri = _read_endpoint(document, "jwks_uri", issuer)
    if jwks_uri is None:
        raise IdentityProviderDown("its metadata has no jwks_uri")
    methods = document.get("token_endpoint_auth_methods_supported")
    return ProviderMetadata(
        jwks_uri=jwks_uri,
        authorization_endpoint=_read_endpoint(document, "authorization_endpoint", issuer),
        token_endpoint=_read_endpoint(document, "token_endpoint", issuer),
        userinfo_endpoint=_read_endpoint(document, "userinfo_endpoint", issuer),
        end_session_endpoint=_read_endpoint(document, "end_session_endpoint", issuer),
        token_auth_methods=tuple(methods) if isinstance(methods, list) else ("client_secret_basic",),
        sends_issuer=document.get("authorization_response_iss_parameter_supported") is True,
    )


def _read_endpoint(document: Mapping[str, Any], name: str, issuer: str) -> str | None:
    """Return an address of the metadata. It must be as safe as the issuer's own."""
    url = document.get(name)
    if url is None:
        return None
    schemes = {"https", urlsplit(issuer).scheme}
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
    except ValueError:
        parts = None
    if parts is None or parts.scheme not in schemes or not parts.hostname or "@" in parts.netloc or parts.fragment:
        raise IdentityProviderDown(f"its metadata has no usable {name}")
    return str(url)
