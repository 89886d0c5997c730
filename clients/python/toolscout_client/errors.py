"""Everything that can go wrong, by what a caller does about it.

ToolscoutError              whatever else is wrong
├── ConnectionFailed        no answer of Toolscout; `outcome` says whether the request may have been carried out
├── InvalidInput            400, 413, 415, 422: the request must change; `errors` lists what is wrong
│   └── ArgumentsInvalid    the model's arguments do not fit the tool: tell the model
├── Unauthenticated         401: there is no such key
├── Forbidden               403: this key may not do that
├── NotFound                404: also what belongs to somebody else; of a tool: tell the model
├── Conflict                409: it is there already, or has changed meanwhile
├── TryLater                with `retry_after`, in seconds
│   ├── RateLimited         429
│   └── Unavailable         503
└── ToolFailed              502, 504: a tool could not be run; `outcome` is `unknown` where it may have run all the same
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import httpx

Json = dict[str, Any]


class ToolscoutError(Exception):
    """`code` is stable, to program against; `message` is a sentence. As a string it is fit for a log or for a model."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        status: int | None = None,
        request_id: str | None = None,
        errors: Sequence[Mapping[str, Any]] | None = None,
        outcome: str | None = None,
        cause: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.request_id = request_id
        self.errors = list(errors or ())
        self.outcome = outcome
        self.cause = cause
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class ConnectionFailed(ToolscoutError):
    """`outcome`: `failed`, nothing was done; `unknown`, it may have been."""


class InvalidInput(ToolscoutError):
    pass


class ArgumentsInvalid(InvalidInput):
    pass


class Unauthenticated(ToolscoutError):
    pass


class Forbidden(ToolscoutError):
    pass


class NotFound(ToolscoutError):
    pass


class Conflict(ToolscoutError):
    pass


class TryLater(ToolscoutError):
    pass


class RateLimited(TryLater):
    pass


class Unavailable(TryLater):
    pass


class ToolFailed(ToolscoutError):
    """`cause` is one stable word where the tool's server could not be reached, and then nothing ran."""


_BY_CODE: dict[str, type[ToolscoutError]] = {
    "TOOL_VALIDATION_ERROR": ArgumentsInvalid,
    "SERVER_CONNECTION_ERROR": ToolFailed,
    "TOOL_EXECUTION_ERROR": ToolFailed,
    "TOOL_EXECUTION_TIMEOUT": ToolFailed,
}
_BY_STATUS: dict[int, type[ToolscoutError]] = {
    400: InvalidInput,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: InvalidInput,
    415: InvalidInput,
    422: InvalidInput,
    429: RateLimited,
    # not in Toolscout's own words: a proxy before it, which cannot know either
    502: ConnectionFailed,
    503: Unavailable,
    504: ConnectionFailed,
}


def error_of(response: httpx.Response) -> ToolscoutError:
    told = _problem(response)
    code = told.get("code", f"status_{response.status_code}")
    kind = _BY_CODE.get(code) or _BY_STATUS.get(response.status_code, ToolscoutError)
    return kind(
        told.get("detail") or f"answered with {response.status_code} {response.reason_phrase}".strip(),
        code=code,
        status=response.status_code,
        request_id=told.get("request_id") or response.headers.get("X-Request-Id"),
        errors=told.get("errors"),
        outcome=told.get("outcome") or _outcome(kind),
        cause=told.get("cause"),
        retry_after=_seconds(response.headers.get("Retry-After")),
    )


def unreadable(response: httpx.Response) -> ToolscoutError:
    """Something else answers at this address, or a Toolscout that this client does not understand."""
    message = f"{response.request.url} gave an answer that is not Toolscout's"
    return ToolscoutError(message, code="unreadable_answer", status=response.status_code)


def _problem(response: httpx.Response) -> Json:
    """Empty where the error is not Toolscout's own."""
    with suppress(ValueError):
        told = response.json()
        if isinstance(told, dict) and "code" in told:
            return told
    return {}


def _outcome(kind: type[ToolscoutError]) -> str | None:
    return {ToolFailed: "failed", ConnectionFailed: "unknown"}.get(kind)


def _seconds(text: str | None) -> float | None:
    """A date instead of seconds is for caches: nobody waits for it here."""
    return float(text) if text is not None and text.isdecimal() else None
