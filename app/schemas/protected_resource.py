"""Response model of the metadata of a protected resource."""

from pydantic import Field

from app.schemas.base import Output


class ProtectedResource(Output):
    """OAuth 2.0 Protected Resource Metadata (RFC 9728)."""

    resource: str = Field(description="the URL of the resource, for which clients ask for a token")
    authorization_servers: list[str] = Field(description="the identity provider, as `TOOLSCOUT_OIDC_ISSUER` names it")
    scopes_supported: list[str] = Field(description="the scopes that clients ask for")
    bearer_methods_supported: list[str]
    resource_name: str
    resource_documentation: str
