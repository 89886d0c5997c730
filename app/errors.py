"""Every error that Toolscout raises on purpose, and the one place where codes and statuses live.

ToolscoutError
├── InvalidInput            422  invalid_input
│   ├── PayloadTooLarge     413  payload_too_large
│   ├── UrlNotAllowed       422  url_not_allowed
│   └── ArgumentsInvalid    422  TOOL_VALIDATION_ERROR  lists every error
├── BadRequest              400  bad_request
│   └── UnsupportedMediaType  415  unsupported_media_type
├── Unauthenticated         401  unauthenticated
├── Forbidden               403  forbidden
│   └── ForeignOrigin       403  forbidden
├── NotFound                404  not_found
│   └── ToolNotFound        404  TOOL_NOT_FOUND
├── Conflict                409  conflict
├── Misdirected             421  misdirected
├── RateLimited             429  rate_limited         says when to try again
├── Unavailable             503  unavailable          says when to try again
│   └── DatabaseDown        503  unavailable
├── ServerUnreachable       502  SERVER_CONNECTION_ERROR  no call has reached the server
├── ToolFailed              502  TOOL_EXECUTION_ERROR     says where it may have run all the same
│   └── ToolTimedOut        504  TOOL_EXECUTION_TIMEOUT
├── EmbeddingFailed         503  embedding_failed     caught by the ladder and by the indexer
├── QueryFailed             500  query_failed         a statement failed; caught by the ladder
│   └── QueryInterrupted    503  unavailable          a deadlock or a time-out: it may go well the next time
└── ConfigurationError      500  CONFIGURATION_ERROR  refuses to start

Doors render these; rooms below the doors never know about HTTP.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal


class ToolscoutError(Exception):
    """`message` is shown to the caller: it says what to do and holds no internals."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Something went wrong"

    def __init__(self, message: str, *, errors: Sequence[Mapping[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.errors = errors

    @property
    def headers(self) -> dict[str, str]:
        return {}

    @property
    def members(self) -> dict[str, Any]:
        """What a program needs to know beyond the code."""
        return {}


class InvalidInput(ToolscoutError):
    code = "invalid_input"
    status = 422
    title = "The input is not valid"


class PayloadTooLarge(InvalidInput):
    code = "payload_too_large"
    status = 413
    title = "The request body is too large"


class UrlNotAllowed(InvalidInput):
    code = "url_not_allowed"
    title = "Toolscout may not connect to that address"


class ArgumentsInvalid(InvalidInput):
    code = "TOOL_VALIDATION_ERROR"
    title = "The arguments do not fit the tool's input schema"

    def __init__(
        self, message: str, *, errors: Sequence[Mapping[str, Any]] | None = None, schema: str | None = None
    ) -> None:
        super().__init__(message, errors=errors)
        self.schema = schema
        """That they should have fitted, for whoever can no longer look it up."""


class BadRequest(ToolscoutError):
    code = "bad_request"
    status = 400
    title = "The request cannot be understood"


class UnsupportedMediaType(BadRequest):
    code = "unsupported_media_type"
    status = 415
    title = "The body is not JSON"


class Unauthenticated(ToolscoutError):
    code = "unauthenticated"
    status = 401
    title = "A valid API key is needed"

    @property
    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class Forbidden(ToolscoutError):
    code = "forbidden"
    status = 403
    title = "This key may not do that"


class ForeignOrigin(Forbidden):
    title = "Pages of this origin may not call us"


class NotFound(ToolscoutError):
    code = "not_found"
    status = 404
    title = "There is no such thing"


class ToolNotFound(NotFound):
    code = "TOOL_NOT_FOUND"
    title = "There is no such tool"


class Conflict(ToolscoutError):
    code = "conflict"
    status = 409
    title = "This conflicts with what is already there"


class Misdirected(ToolscoutError):
    code = "misdirected"
    status = 421
    title = "The request was meant for another service"


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
    title = "The service cannot answer just now"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(self.retry_after_s)}


class DatabaseDown(Unavailable):
    title = "The database does not answer"


class ServerUnreachable(ToolscoutError):
    """`cause` is a short, stable word. The message is ours alone, for it is stored: what a server says may hold a
    secret that it was sent."""

    code = "SERVER_CONNECTION_ERROR"
    status = 502
    title = "The MCP server cannot be used"

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause

    @property
    def members(self) -> dict[str, Any]:
        return {"cause": self.cause}

    @property
    def passing(self) -> bool:
        """Whether it may go well the next time, with nothing changed here."""
        return self.cause in DISCONNECTIONS or self.cause.startswith("status_5")


DISCONNECTIONS = frozenset({"dns", "refused", "timeout", "closed"})
"""Causes of which one learns nothing but that nobody is there. With all others something answered, though wrongly."""


CallOutcome = Literal["failed", "unknown"]


class ToolFailed(ToolscoutError):
    code = "TOOL_EXECUTION_ERROR"
    status = 502
    title = "The tool could not be run"

    def __init__(self, message: str, *, outcome: CallOutcome) -> None:
        super().__init__(message)
        self.outcome = outcome

    @property
    def members(self) -> dict[str, Any]:
        return {"outcome": self.outcome}


class ToolTimedOut(ToolFailed):
    code = "TOOL_EXECUTION_TIMEOUT"
    status = 504
    title = "The tool took too long"


_OF_THE_WHOLE_EMBEDDER = frozenset({"timeout", "unreachable", "closed", "not_configured", "status_429"})


class EmbeddingFailed(ToolscoutError):
    """`reason` is a short, stable word for metrics and for `degraded_reason`."""

    code = "embedding_failed"
    status = 503
    title = "The embedder did not answer usably"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    @property
    def passing(self) -> bool:
        """Whether the embedder as a whole is down, rather than unable to take one text."""
        return self.reason in _OF_THE_WHOLE_EMBEDDER or self.reason.startswith("status_5")


class QueryFailed(ToolscoutError):
    code = "query_failed"
    title = "The database refused a statement"


class QueryInterrupted(QueryFailed):
    code = "unavailable"
    status = 503
    title = "The database broke a statement off"

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": "1"}


class ConfigurationError(ToolscoutError):
    code = "CONFIGURATION_ERROR"
    status = 500
    title = "Toolscout is not configured rightly"
