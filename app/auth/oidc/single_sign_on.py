"""Everything about the identity provider that the settings name."""

from dataclasses import dataclass

from app.auth.oidc.access_tokens import AccessTokenVerifier
from app.auth.oidc.code_flow import CodeFlow
from app.auth.oidc.config import OidcConfig, read_oidc_config
from app.auth.oidc.provider import IdentityProvider
from app.settings import Settings


@dataclass(frozen=True)
class SingleSignOn:
    config: OidcConfig
    provider: IdentityProvider
    access_tokens: AccessTokenVerifier
    code_flow: CodeFlow | None
    """For the console; None if the settings name no client."""


def make_single_sign_on(settings: Settings) -> SingleSignOn | None:
    """Return None if the settings name no identity provider."""
    config = read_oidc_config(settings)
    if config is None:
        return None
    provider = IdentityProvider(config.issuer)
    code_flow = None if config.client_id is None else CodeFlow(config, config.client_id, provider)
    return SingleSignOn(config, provider, AccessTokenVerifier(config, provider), code_flow)
