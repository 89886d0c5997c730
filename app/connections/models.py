"""The types of a sign-in to a user's server. Secrets are in no `repr`."""

from dataclasses import dataclass, field
from datetime import datetime

from app.text.strict_json import Json


@dataclass(frozen=True)
class AuthorizationLink:
    """Where the user's browser signs in."""

    authorization_url: str
    expires_at: datetime


@dataclass(frozen=True)
class OAuthContext:
    """Everything that a sign-in has found out, and that later requests to the authorization server need."""

    server_url: str
    redirect_uri: str
    issuer: str
    resource: str
    scope: str | None
    metadata: Json
    """Of the authorization server (RFC 8414)."""
    resource_metadata: Json | None
    """Of the MCP server (RFC 9728)."""
    client: Json = field(repr=False)
    """Who we are to the authorization server: client id and, maybe, a secret."""


@dataclass(frozen=True)
class Tokens:
    access_token: str = field(repr=False)
    refresh_token: str | None = field(repr=False)
    scope: str | None
    expires_in: int | None = None
    """Seconds from the moment at which the tokens were issued; None if the server does not say."""


@dataclass(frozen=True)
class PendingRequest:
    """A sign-in that has begun, and waits for the user's browser."""

    id: str
    server_id: str
    context: OAuthContext
    verifier: str = field(repr=False)
    authorization_url: str = field(repr=False)
    required_scope: str | None
    redirect_url: str | None
    browser: bytes | None
    """The hash of the cookie of the browser that began it; None if it did not begin in a browser."""
    actor: str
    expires_at: datetime | None = None
    """None until it is stored."""
    is_expired: bool = False

    def is_for(self, server_url: str | None, required_scope: str | None) -> bool:
        """Whether a new sign-in would ask the same server for the same rights."""
        return self.context.server_url == server_url and self.required_scope == required_scope


@dataclass(frozen=True)
class ServerConnection:
    """A user's account at a server."""

    user_id: str
    server_id: str
    version: int
    context: OAuthContext | None
    """None: the user has never signed in; only `required_scope` is known."""
    tokens: Tokens | None
    """None: the user must sign in (again)."""
    scope: str | None
    """What was granted."""
    required_scope: str | None
    """What a call was refused for want of."""
    expires_at: datetime | None
    refreshed_at: datetime
    now: datetime
    """The database's time when the row was read: processes' clocks may differ."""

    def has_same_token(self, other: "ServerConnection") -> bool:
        """Whether no other token was stored since. Versions restart when an account is connected again."""
        return (self.version, self.refreshed_at) == (other.version, other.refreshed_at)


@dataclass(frozen=True)
class Callback:
    """The parameters with which the authorization server sends the browser back."""

    state: str | None = field(default=None, repr=False)
    code: str | None = field(default=None, repr=False)
    iss: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class SignInResult:
    """How a sign-in ended, for the browser that comes back."""

    server_id: str | None
    server_name: str | None
    error: str | None
    """A stable word; None if the account is connected."""
    message: str
    redirect_url: str | None
    """Where to send the browser; None: show the message."""
    shared: bool = False
    """Whether it is the account with which an administrator's shared server is listed."""
