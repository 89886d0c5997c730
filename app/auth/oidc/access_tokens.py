"""Verify access tokens of the identity provider, which callers present instead of an API key."""

from app.auth.identity import Identity
from app.auth.oidc.claims import read_identity
from app.auth.oidc.config import OidcConfig
from app.auth.oidc.provider import IdentityProvider
from app.auth.oidc.tokens import ALGORITHMS, MAX_TOKEN_BYTES, Claims, invalid_token, read_header, verify_token

_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})


class AccessTokenVerifier:
    def __init__(self, config: OidcConfig, provider: IdentityProvider) -> None:
        self._config = config
        self._provider = provider

    async def verify(self, token: str, resource_paths: tuple[str, ...] = ()) -> Identity:
        """Return whom the token stands for.

        `resource_paths`: the paths whose URLs are audiences beside the configured one and the service's own URL.
        Raise `Unauthenticated`, or `IdentityProviderDown` if the provider's keys cannot be had.
        """
        if len(token) > MAX_TOKEN_BYTES:
            raise invalid_token(f"is larger than {MAX_TOKEN_BYTES // 1024} KiB")
        header = read_header(token)
        if header.type is not None and header.type.lower() not in _TYPES:
            raise invalid_token("is no access token")
        if header.algorithm not in ALGORITHMS:
            raise invalid_token("is not signed, or in a way that is not accepted")
        key = await self._provider.find_key(header.kid, header.algorithm)
        if key is None:
            raise invalid_token("is not signed with a key of the identity provider")
        audiences = self._list_audiences(resource_paths)
        claims = verify_token(token, key, issuer=self._config.issuer, audiences=audiences)
        _check_use(claims)
        return read_identity(claims, self._config)

    def _list_audiences(self, resource_paths: tuple[str, ...]) -> list[str]:
        """Only the configured URL counts, never the one that a request names: its sender chooses that."""
        url = self._config.public_url
        own = [] if url is None else [url, f"{url}/", *(f"{url}{path}" for path in resource_paths)]
        return [self._config.audience, *own]


def _check_use(claims: Claims) -> None:
    """Refuse ID tokens, where one audience is used for both, and tokens that only count with a proof of possession."""
    is_id_token = "at_hash" in claims or "c_hash" in claims or claims.get("typ") == "ID"
    if is_id_token or claims.get("token_use") == "id":
        raise invalid_token("is an ID token; send an access token")
    if "cnf" in claims:
        raise invalid_token("is bound to a key of its client (DPoP or mTLS), which is not supported")
