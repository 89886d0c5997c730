"""Sign-in with a browser at the identity provider: the authorization code flow with PKCE."""

import asyncio
import base64
import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from app.auth.identity import Identity
from app.auth.oidc.claims import find_claim, read_identity
from app.auth.oidc.config import OidcConfig
from app.auth.oidc.provider import IdentityProvider, ProviderMetadata
from app.auth.oidc.tokens import Claims, invalid_token, matches_hash, read_header, verify_token
from app.errors import IdentityProviderDown, Unauthenticated, Unavailable

_MAX_EXCHANGES = 8
"""At the same time: anybody can begin a sign-in and present an invented code."""
_OK = 200
_ERROR_CODE = re.compile(r"[a-z_]{1,64}")

logger = logging.getLogger("toolscout.auth")


@dataclass(frozen=True)
class PendingSignIn:
    """What must be remembered, and kept secret, until the browser returns."""

    state: str = field(repr=False)
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)
    redirect_uri: str


class CodeFlow:
    def __init__(self, config: OidcConfig, client_id: str, provider: IdentityProvider) -> None:
        self._config = config
        self._client_id = client_id
        self._provider = provider
        self._exchanges = asyncio.Semaphore(_MAX_EXCHANGES)

    async def start(self, redirect_uri: str) -> tuple[str, PendingSignIn]:
        """Return the address at which the person signs in, and what `finish` needs."""
        metadata = (await self._provider.get_state()).metadata
        if metadata.authorization_endpoint is None:
            raise IdentityProviderDown("its metadata has no authorization_endpoint")
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        pending = PendingSignIn(state, nonce, verifier, redirect_uri)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(pending.verifier.encode()).digest()).rstrip(b"=")
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self._config.scopes),
            "state": pending.state,
            "nonce": pending.nonce,
            "code_challenge": challenge.decode(),
            "code_challenge_method": "S256",
        }
        mark = "&" if "?" in metadata.authorization_endpoint else "?"
        return f"{metadata.authorization_endpoint}{mark}{urlencode(query)}", pending

    async def finish(self, pending: PendingSignIn, answer: Mapping[str, str]) -> Identity:
        """Return the person who has signed in. `answer` is the query with which the browser returned.

        Raise `Unauthenticated` if it does not belong to `pending`, or if the provider refuses.
        """
        if not hmac.compare_digest(answer.get("state", "").encode(), pending.state.encode()):
            raise Unauthenticated("this sign-in was not started here, or another one was started since; start again")
        metadata = (await self._provider.get_state()).metadata
        if answer.get("iss", None if metadata.sends_issuer else self._config.issuer) != self._config.issuer:
            raise Unauthenticated("the answer is of another identity provider; start again")
        if "error" in answer or "code" not in answer:
            _log_refusal("authorization", answer.get("error"))
            raise Unauthenticated("the identity provider refused the sign-in, or it was cancelled")
        if self._exchanges.locked():
            raise Unavailable("too many people sign in at the same time; try again shortly")
        async with self._exchanges:
            tokens = await self._exchange(metadata, pending, answer["code"])
            claims = await self._verify_id_token(tokens, pending.nonce)
            return read_identity(await self._complete(metadata, claims, tokens.get("access_token")), self._config)

    async def get_sign_out_url(self) -> str | None:
        """Return the provider's page for signing out there, too."""
        try:
            url = (await self._provider.get_state()).metadata.end_session_endpoint
        except IdentityProviderDown:
            return None
        mark = "&" if url is not None and "?" in url else "?"
        return None if url is None else f"{url}{mark}{urlencode({'client_id': self._client_id})}"

    async def _exchange(self, metadata: ProviderMetadata, pending: PendingSignIn, code: str) -> Mapping[str, Any]:
        """Exchange the code for tokens. No text of the answer is passed on: it may repeat what was sent."""
        if metadata.token_endpoint is None:
            raise IdentityProviderDown("its metadata has no token_endpoint")
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": pending.redirect_uri,
            "code_verifier": pending.verifier,
            "client_id": self._client_id,
        }
        secret, auth = self._config.client_secret, None
        if secret is not None and "client_secret_basic" in metadata.token_auth_methods:
            auth = (quote(self._client_id, safe=""), quote(secret, safe=""))
        elif secret is not None:
            form["client_secret"] = secret
        status, tokens = await self._provider.post_form(metadata.token_endpoint, form, auth)
        if status == _OK and isinstance(tokens, dict) and isinstance(tokens.get("id_token"), str):
            return tokens
        _log_refusal("token", tokens.get("error") if isinstance(tokens, dict) else None)
        raise Unauthenticated(f"the identity provider did not accept the sign-in (status {status}); start again")

    async def _verify_id_token(self, tokens: Mapping[str, Any], nonce: str) -> Claims:
        id_token, access_token = tokens["id_token"], tokens.get("access_token")
        header = read_header(id_token)
        key = await self._provider.find_key(header.kid, header.algorithm)
        if key is None:
            raise invalid_token("is not signed with a key of the identity provider")
        claims = verify_token(id_token, key, issuer=self._config.issuer, audiences=[self._client_id])
        has_others = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", None if has_others else self._client_id) != self._client_id:
            raise invalid_token("was made for another client")
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise invalid_token("belongs to another sign-in")
        if (
            "at_hash" in claims
            and isinstance(access_token, str)
            and not matches_hash(access_token, claims["at_hash"], header.algorithm)
        ):
            raise invalid_token("belongs to another access token")
        return claims

    async def _complete(self, metadata: ProviderMetadata, claims: Claims, access_token: Any) -> Claims:
        """Add the claims that the provider tells only at its userinfo endpoint, if one that is needed is missing."""
        needed = self._config.user_claim, self._config.groups_claim
        is_complete = all(find_claim(claims, name) is not None for name in needed)
        if is_complete or metadata.userinfo_endpoint is None or not isinstance(access_token, str):
            return claims
        more = await self._provider.get_with_token(metadata.userinfo_endpoint, access_token)
        if not isinstance(more, dict) or more.get("sub") != claims.get("sub"):
            raise invalid_token("is about another person than the identity provider's userinfo")
        return {**more, **claims}


def _log_refusal(step: str, error: Any) -> None:
    """Log the code of an error, such as `invalid_client`, for the operator. Other texts may repeat secrets."""
    is_code = isinstance(error, str) and _ERROR_CODE.fullmatch(error) is not None
    logger.warning(
        "sign-in refused by the identity provider", extra={"step": step, "error": error if is_code else None}
    )
