"""How users sign in to their servers (OAuth)."""

import json

from pydantic import BaseModel, Field, SecretStr, field_validator

from app.settings.values import Origins, is_base_url, split_list

_OPTIONAL_MEMBERS = ("client_secret", "token_endpoint_auth_method", "scope")
_CLIENT_MEMBERS = {"client_id", *_OPTIONAL_MEMBERS}
_CLIENT_AUTH_METHODS = ("none", "client_secret_basic", "client_secret_post")


class SignInSettings(BaseModel):
    redirect_origins: Origins = Field(
        "",
        description="origins to which a browser may be sent back after a sign-in to a server (`redirect_url`), "
        "comma-separated, such as `https://chat.example.com`; Toolscout's own is always allowed",
    )
    oauth_clients: SecretStr | None = Field(
        None,
        description="clients that you have registered at authorization servers, as JSON by issuer: "
        '`{"https://issuer.example": {"client_id": "…", "client_secret": "…"}}`; needed where a server allows neither '
        "client id metadata documents nor dynamic registration. Optional members: `token_endpoint_auth_method` "
        "(`client_secret_basic`, `client_secret_post`) and `scope`",
    )

    @field_validator("oauth_clients")
    @classmethod
    def _check_oauth_clients(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            _parse_oauth_clients(value.get_secret_value())
        return value

    @property
    def allowed_redirects(self) -> list[str]:
        return [origin.rstrip("/") for origin in split_list(self.redirect_origins.lower())]

    @property
    def operator_clients(self) -> dict[str, dict[str, str]]:
        """The members of each OAuth client, by issuer."""
        return {} if self.oauth_clients is None else _parse_oauth_clients(self.oauth_clients.get_secret_value())


def _parse_oauth_clients(text: str) -> dict[str, dict[str, str]]:
    try:
        clients = json.loads(text)
    except ValueError:
        raise ValueError("must be a JSON object") from None  # the cause quotes the secrets
    if not isinstance(clients, dict):
        raise ValueError("must be a JSON object, by issuer")
    for issuer, client in clients.items():
        if not is_base_url(issuer):
            raise ValueError(f"{issuer!r} is not an issuer, such as https://issuer.example")
        if not isinstance(client, dict) or not all(isinstance(value, str) for value in client.values()):
            raise ValueError(f"the client of {issuer} must be an object of strings")
        if not client.get("client_id") or client.keys() - _CLIENT_MEMBERS:
            raise ValueError(f"the client of {issuer} has `client_id` and, optionally, {', '.join(_OPTIONAL_MEMBERS)}")
        if client.get("token_endpoint_auth_method", "none") not in _CLIENT_AUTH_METHODS:
            raise ValueError(f"the client of {issuer}: token_endpoint_auth_method is one of {_CLIENT_AUTH_METHODS}")
    return clients
