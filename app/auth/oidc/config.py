"""What the settings say about the identity provider."""

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from app.settings import Settings


@dataclass(frozen=True)
class OidcConfig:
    issuer: str
    audience: str
    public_url: str | None
    """Without a slash at its end."""
    user_claim: str = "sub"
    groups_claim: str = "groups"
    admin_groups: frozenset[str] = frozenset()
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    scopes: tuple[str, ...] = ("openid",)
    name: str = ""


def read_oidc_config(settings: Settings) -> OidcConfig | None:
    """Return None if the settings name no identity provider."""
    if settings.oidc_issuer is None or settings.oidc_audience is None:
        return None
    secret = settings.oidc_client_secret
    return OidcConfig(
        issuer=settings.oidc_issuer,
        audience=settings.oidc_audience,
        public_url=None if settings.public_url is None else settings.public_url.rstrip("/"),
        user_claim=settings.oidc_user_claim,
        groups_claim=settings.oidc_groups_claim,
        admin_groups=settings.admin_groups,
        client_id=settings.oidc_client_id,
        client_secret=None if secret is None else secret.get_secret_value(),
        scopes=tuple(settings.oidc_scopes.split()),
        name=settings.oidc_name or urlsplit(settings.oidc_issuer).netloc,
    )
