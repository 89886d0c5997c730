"""The errors that Toolscout raises, each with its stable code and HTTP status.

ToolscoutError
├── InvalidInput            422  invalid_input
│   ├── PayloadTooLarge     413  payload_too_large
│   ├── LimitReached        422  invalid_input        a user has as many as the settings allow
│   ├── UrlNotAllowed       422  url_not_allowed
│   └── ArgumentsInvalid    422  TOOL_VALIDATION_ERROR  lists every error
├── BadRequest              400  bad_request
│   └── UnsupportedMediaType  415  unsupported_media_type
├── RequestTimeout          408  request_timeout      the body did not arrive in time
├── ClientDisconnected      499  client_disconnected  nobody reads the response; it is only logged
├── Unauthenticated         401  unauthenticated
├── Forbidden               403  forbidden
│   └── ForeignOrigin       403  forbidden
├── NotFound                404  not_found
│   └── ToolNotFound        404  TOOL_NOT_FOUND
├── Conflict                409  conflict
│   └── AmbiguousTool       409  conflict             lists the tools that a key may mean
├── ConfirmationRequired    409  CONFIRMATION_REQUIRED    nothing ran; has the token that confirms the call
├── Misdirected             421  misdirected
├── RateLimited             429  rate_limited         says when to try again
├── Unavailable             503  unavailable          says when to try again
│   ├── DatabaseDown        503  unavailable
│   │   └── NodeDown        503  unavailable          one node of a distributed database
│   └── IdentityProviderDown  503  unavailable        its keys or its answer cannot be had
├── ServerUnreachable       502  SERVER_CONNECTION_ERROR  no call has reached the server
│   └── AuthorizationRequired  403  AUTHORIZATION_REQUIRED  the user must sign in to the server first; nothing ran
├── RequestRejected         502  SERVER_REQUEST_REJECTED  the server answered with an error; nothing changed
├── ToolFailed              502  TOOL_EXECUTION_ERROR     says whether the tool may have run
│   └── ToolTimedOut        504  TOOL_EXECUTION_TIMEOUT
├── ServiceFailed           500  internal_error       a service that the operator has configured
│   ├── EmbeddingFailed     503  embedding_failed     handled by the fallback chain and by the indexer
│   ├── CloudFailed         503  cloud_failed         handled by the fallback chain
│   └── RegistryFailed      502  registry_failed      the registry of MCP servers
├── QueryFailed             500  query_failed         a statement failed; handled by the fallback chain
│   └── QueryInterrupted    503  unavailable          a deadlock or a timeout: a retry may succeed
└── ConfigurationError      500  CONFIGURATION_ERROR  prevents the start

The interfaces (REST, MCP, console, CLI) render these errors; no other package knows about HTTP.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Literal, NamedTuple

_MAX_CHOICES = 20


class CalledTool(NamedTuple):
    """The names of a tool and of its server."""

    server: str
    tool: str


class ToolscoutError(Exception):
    """The base class. `message` is shown to the caller: it says what to do and contains no internals."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"

    def __init__(self, message: str, *, errors: Sequence[Mapping[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.errors = errors
        self.called_tool: CalledTool | None = None
        """Set if a call of this tool failed."""

    @property
    def headers(self) -> dict[str, str]:
        return {}

    @property
    def members(self) -> dict[str, Any]:
        """Extra problem fields for programs, beyond the code."""
        return {}

    @property
    def all_members(self) -> dict[str, Any]:
        """`members`, and the names of the called tool and its server."""
        return self.members | ({} if self.called_tool is None else self.called_tool._asdict())


class InvalidInput(ToolscoutError):
    code = "invalid_input"
    status = 422
    title = "Invalid input"


class PayloadTooLarge(InvalidInput):
    code = "payload_too_large"
    status = 413
    title = "Request body too large"


class LimitReached(InvalidInput):
    """The user has as many of something as the settings allow."""

    title = "Limit reached"

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"a user has at most {limit} {what}: delete some, or ask the operator for a higher limit")


class UrlNotAllowed(InvalidInput):
    code = "url_not_allowed"
    title = "Address not allowed"


class ArgumentsInvalid(InvalidInput):
    code = "TOOL_VALIDATION_ERROR"
    title = "Arguments do not match the tool's input schema"

    def __init__(
        self, message: str, *, errors: Sequence[Mapping[str, Any]] | None = None, schema: str | None = None
    ) -> None:
        super().__init__(message, errors=errors)
        self.schema = schema
        """The input schema, for callers that can no longer look it up."""


class BadRequest(ToolscoutError):
    code = "bad_request"
    status = 400
    title = "Bad request"


class UnsupportedMediaType(BadRequest):
    code = "unsupported_media_type"
    status = 415
    title = "Request body is not JSON"


class RequestTimeout(ToolscoutError):
    code = "request_timeout"
    status = 408
    title = "Request body not received in time"


class ClientDisconnected(ToolscoutError):
    code = "client_disconnected"
    status = 499
    title = "Client disconnected"


class Unauthenticated(ToolscoutError):
    code = "unauthenticated"
    status = 401
    title = "Valid credentials required"

    challenge = "Bearer"
    """What `WWW-Authenticate` says. The request pipeline adds where to get a token, if there is such a place."""

    @property
    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": self.challenge}


class Forbidden(ToolscoutError):
    code = "forbidden"
    status = 403
    title = "Permission denied"


class ForeignOrigin(Forbidden):
    title = "Origin not allowed"


class NotFound(ToolscoutError):
    code = "not_found"
    status = 404
    title = "Resource not found"


class ToolNotFound(NotFound):
    code = "TOOL_NOT_FOUND"
    title = "Tool not found"


class Conflict(ToolscoutError):
    code = "conflict"
    status = 409
    title = "Conflict with the current state"


class AmbiguousTool(Conflict):
    """Several tools have the name. `tools` are their keys and their names with their servers'."""

    title = "Several tools have this name"

    def __init__(self, key: str, tools: Sequence[tuple[str, str]]) -> None:
        names = ", ".join(name for _, name in tools[:_MAX_CHOICES])
        more = f" and {len(tools) - _MAX_CHOICES} others" if len(tools) > _MAX_CHOICES else ""
        super().__init__(f"several tools are named {key!r}: choose one of {names}{more}")
        self.choices = [{"tool_key": tool_id, "name": name} for tool_id, name in tools[:_MAX_CHOICES]]

    @property
    def members(self) -> dict[str, Any]:
        return {"choices": self.choices}


class ConfirmationRequired(ToolscoutError):
    """A call of a destructive tool waits for a confirmation; nothing was run. Only the same call redeems the token."""

    code = "CONFIRMATION_REQUIRED"
    status = 409
    title = "Confirmation required"

    def __init__(self, message: str, *, token: str, expires_at: datetime) -> None:
        super().__init__(message)
        self.token = token
        self.expires_at = expires_at

    @property
    def members(self) -> dict[str, Any]:
        return {"confirmation_token": self.token, "expires_at": self.expires_at.isoformat()}


class Misdirected(ToolscoutError):
    code = "misdirected"
    status = 421
    title = "Request sent to the wrong host"


class RateLimited(ToolscoutError):
    code = "rate_limited"
    status = 429
    title = "Too many requests"

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(self.retry_after_s)}


class Unavailable(ToolscoutError):
    code = "unavailable"
    status = 503
    title = "Service temporarily unavailable"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(self.retry_after_s)}


class DatabaseDown(Unavailable):
    title = "Database unavailable"


class NodeDown(DatabaseDown):
    """A node of a distributed database does not answer: users whose rows are on other nodes are served."""


class IdentityProviderDown(Unavailable):
    """The identity provider did not answer, or not as it should. `reason` is for the log and for operators."""

    title = "Identity provider unavailable"

    def __init__(self, reason: str, *, retry_after_s: int = 1) -> None:
        super().__init__(
            "the identity provider cannot be used now; try again, or use an API key", retry_after_s=retry_after_s
        )
        self.reason = reason


class ServerUnreachable(ToolscoutError):
    """An MCP server cannot be reached or used. `cause` is a short, stable word. The message never quotes the server,
    because it is stored, and a server may echo a secret that it was sent."""

    code = "SERVER_CONNECTION_ERROR"
    status = 502
    title = "MCP server unavailable"

    def __init__(self, cause: str, message: str, *, http_status: int | None = None) -> None:
        super().__init__(message)
        self.cause = cause
        self.http_status = http_status
        """The status with which the server rejected the credentials, if it did."""

    @property
    def members(self) -> dict[str, Any]:
        return {"cause": self.cause}

    @property
    def retryable(self) -> bool:
        """Whether a retry may succeed without a change of configuration."""
        return self.cause in {*DISCONNECTIONS, "credentials"} or self.cause.startswith("status_5")


DISCONNECTIONS = frozenset({"dns", "refused", "timeout", "closed"})
"""Causes that mean that nothing answered at the address. With every other cause the server answered, but wrongly."""


AUTHORIZATION_REQUIRED = "authorization_required"
"""The cause of a server that wants its user to sign in."""


class AuthorizationRequired(ServerUnreachable):
    """The user must sign in to the server first, or give it more rights. Nothing has run."""

    code = "AUTHORIZATION_REQUIRED"
    status = 403
    title = "Sign-in to the server required"

    def __init__(
        self,
        message: str = "this server wants you to sign in: POST /servers/{id}/connect, or Connect in the console",
        *,
        authorization_url: str | None = None,
        expires_at: datetime | None = None,
        required_scope: str | None = None,
        http_status: int | None = None,
    ) -> None:
        super().__init__(AUTHORIZATION_REQUIRED, message, http_status=http_status)
        self.authorization_url = authorization_url
        """Where the user's browser signs in, if a link was made."""
        self.expires_at = expires_at
        self.required_scope = required_scope
        """The scope that the server's challenge asks for."""

    @property
    def members(self) -> dict[str, Any]:
        expires_at = None if self.expires_at is None else self.expires_at.isoformat()
        return {"authorization_url": self.authorization_url, "expires_at": expires_at}


class RequestRejected(ToolscoutError):
    """A server answered a request for a resource or a prompt with an error. The message may quote the server, so it is
    for the caller only and is not stored."""

    code = "SERVER_REQUEST_REJECTED"
    status = 502
    title = "MCP server rejected the request"

    def __init__(self, message: str, *, is_callers_fault: bool = False) -> None:
        super().__init__(message)
        self.is_callers_fault = is_callers_fault
        """Whether the server says that the request is wrong: an unknown resource, a missing argument."""


CallOutcome = Literal["failed", "unknown"]


class ToolFailed(ToolscoutError):
    code = "TOOL_EXECUTION_ERROR"
    status = 502
    title = "Tool execution failed"

    def __init__(self, message: str, *, outcome: CallOutcome) -> None:
        super().__init__(message)
        self.outcome = outcome

    @property
    def members(self) -> dict[str, Any]:
        return {"outcome": self.outcome}


class ToolTimedOut(ToolFailed):
    code = "TOOL_EXECUTION_TIMEOUT"
    status = 504
    title = "Tool execution timed out"


_EMBEDDER_OUTAGES = frozenset({"timeout", "unreachable", "closed", "not_configured", "status_429"})


class ServiceFailed(ToolscoutError):
    """A service that the operator has configured gave no usable answer. `reason` is a short, stable word."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class EmbeddingFailed(ServiceFailed):
    """The embedder returned no usable vectors. `reason` is a short, stable word for metrics and `degraded_reason`."""

    code = "embedding_failed"
    status = 503
    title = "Embedding failed"

    @property
    def retryable(self) -> bool:
        """Whether the embedder as a whole is down, rather than unable to embed one text."""
        return self.reason in _EMBEDDER_OUTAGES or self.reason.startswith("status_5")


class CloudFailed(ServiceFailed):
    """The cloud returned no usable answer. `reason` is a short, stable word for metrics and `degraded_reason`."""

    code = "cloud_failed"
    status = 503
    title = "Search through the cloud failed"


class RegistryFailed(ServiceFailed):
    code = "registry_failed"
    status = 502
    title = "Registry of MCP servers unavailable"

    @property
    def members(self) -> dict[str, Any]:
        return {"cause": self.reason}


class QueryFailed(ToolscoutError):
    code = "query_failed"
    title = "Database query failed"


class QueryInterrupted(QueryFailed):
    code = "unavailable"
    status = 503
    title = "Database query interrupted"

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": "1"}


class ConfigurationError(ToolscoutError):
    code = "CONFIGURATION_ERROR"
    status = 500
    title = "Invalid configuration"
