"""The identity provider (OpenID Connect)."""

from urllib.parse import urlsplit

from pydantic import BaseModel, Field, SecretStr, ValidationInfo, field_validator

from app.settings.values import LOOPBACK_HOSTS, is_base_url, split_list


class IdentitySettings(BaseModel):
    oidc_issuer: str | None = Field(
        None,
        description="identity provider (OpenID Connect) whose access tokens are accepted beside API keys, as the URL "
        "that its tokens name in `iss`, such as `https://login.example.com/realms/main`; plain HTTP only on the "
        "loopback interface and for hosts in `TOOLSCOUT_OUTBOUND_ALLOW`",
    )
    oidc_audience: str | None = Field(
        None,
        validate_default=True,
        description="audience (`aud`) that an access token must have, such as `https://tools.example.com`; required "
        "with `TOOLSCOUT_OIDC_ISSUER`. A token for `TOOLSCOUT_PUBLIC_URL` is accepted, too, and one for the URL of an "
        "MCP endpoint at that endpoint",
    )
    oidc_user_claim: str = Field(
        "sub",
        min_length=1,
        description="claim of a token that is the id of its user; choose one that people cannot change themselves",
    )
    oidc_groups_claim: str = Field(
        "groups",
        min_length=1,
        description="claim that lists the groups of the user; dots lead into objects, as in `realm_access.roles`",
    )
    oidc_admin_groups: str = Field(
        "", description="groups whose members are administrators, comma-separated; without it, nobody is"
    )
    oidc_client_id: str | None = Field(
        None,
        description="client id of the console at the identity provider; with it, people can sign in to the console "
        "there. Register the redirect URL `{TOOLSCOUT_PUBLIC_URL}/console/sign-in/callback`",
    )
    oidc_client_secret: SecretStr | None = Field(
        None, description="secret of `TOOLSCOUT_OIDC_CLIENT_ID`; not set for a public client"
    )
    oidc_scopes: str = Field(
        "openid profile email",
        description="scopes that the console's sign-in and MCP clients ask for, separated by blanks, with `openid`",
    )
    oidc_name: str | None = Field(
        None, description="name of the identity provider on the sign-in page; by default the host of its URL"
    )

    @field_validator("oidc_issuer")
    @classmethod
    def _check_oidc_issuer(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None:
            return None
        if not is_base_url(value):
            raise ValueError("must be a URL without user, query or fragment, such as https://login.example.com")
        url = urlsplit(value)
        entry = url.netloc if url.port is not None else f"{url.netloc}:80"
        is_own = url.hostname in LOOPBACK_HOSTS or entry.lower() in split_list(info.data.get("outbound_allow", ""))
        if url.scheme != "https" and not is_own:
            raise ValueError(f"must be an https:// URL, unless TOOLSCOUT_OUTBOUND_ALLOW lists {entry}")
        return value

    @field_validator("oidc_audience")
    @classmethod
    def _check_oidc_audience(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None and info.data.get("oidc_issuer") is not None:
            raise ValueError("is required with TOOLSCOUT_OIDC_ISSUER: a token for any other service would be accepted")
        return value

    @field_validator("oidc_client_id", "oidc_audience")
    @classmethod
    def _check_oidc_is_configured(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("oidc_issuer", "") is None:
            raise ValueError("needs TOOLSCOUT_OIDC_ISSUER")
        return value

    @field_validator("oidc_scopes")
    @classmethod
    def _check_oidc_scopes(cls, value: str) -> str:
        if "openid" not in value.split():
            raise ValueError("must contain openid")
        return value

    @property
    def admin_groups(self) -> frozenset[str]:
        return frozenset(split_list(self.oidc_admin_groups))
