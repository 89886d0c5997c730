"""The errors that the client raises, by what a caller does about them.

ToolscoutError              any other error
├── ConnectionFailed        no answer from Toolscout; `outcome` says whether the request may have been processed
├── InvalidInput            400, 413, 415, 422: the request is invalid; `errors` lists the reasons
│   └── ArgumentsInvalid    the arguments do not match the tool's input schema: tell the model
├── Unauthenticated         401: the key is missing or not valid
├── Forbidden               403: the key lacks the permission
├── AuthorizationRequired   403: the user must sign in to the tool's server first; show `authorization_url` to the user
├── NotFound                404: it does not exist, or belongs to another user; for a tool: tell the model
├── Conflict                409: it already exists, or has changed since
│   └── ConfirmationRequired  let the user confirm the call, then send it again with `token`
├── TryLater                try again after `retry_after` seconds
│   ├── RateLimited         429
│   └── Unavailable         503
└── ToolFailed              502, 504: the tool failed; `outcome` is `unknown` if it may have run
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import httpx

Json = dict[str, Any]


class ToolscoutError(Exception):
    """`code` is stable, `message` is for people. `str(error)` contains both and can be logged or shown to a model.

    `server` and `tool` are the names of the tool that a failed call is about, once Toolscout has found it. `choices`
    are the `tool_key` and `name` of each tool that an ambiguous name may mean.
    """

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
        server: str | None = None,
        tool: str | None = None,
        choices: Sequence[Mapping[str, Any]] | None = None,
        retry_after: float | None = None,
        authorization_url: str | None = None,
        confirmation_token: str | None = None,
        expires_at: datetime | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.request_id = request_id
        self.errors = list(errors or ())
        self.outcome = outcome
        self.cause = cause
        self.server = server
        self.tool = tool
        self.choices = list(choices or ())
        self.retry_after = retry_after
        self.authorization_url = authorization_url
        self.confirmation_token = confirmation_token
        self.expires_at = expires_at

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class ConnectionFailed(ToolscoutError):
    """`outcome` is `failed` if the request was not processed, `unknown` if it may have been."""


class InvalidInput(ToolscoutError):
    pass


class ArgumentsInvalid(InvalidInput):
    pass


class Unauthenticated(ToolscoutError):
    pass


class Forbidden(ToolscoutError):
    pass


class AuthorizationRequired(ToolscoutError):
    """Nothing was run. `authorization_url` is the page on which the user signs in, until `expires_at`; it is None if
    Toolscout does not know its own address. Once the user has signed in, the same call runs."""


class NotFound(ToolscoutError):
    pass


class Conflict(ToolscoutError):
    pass


class ConfirmationRequired(Conflict):
    """The tool says that it is destructive, and nothing was run. Only the same call redeems the token, once."""

    @property
    def token(self) -> str:
        """For `execute(..., confirmation_token=error.token)`, until `expires_at`."""
        return self.confirmation_token or ""


class TryLater(ToolscoutError):
    pass


class RateLimited(TryLater):
    pass


class Unavailable(TryLater):
    pass


class ToolFailed(ToolscoutError):
    """`cause` is set, to a stable word, if the tool's server could not be reached; then nothing was run."""


_BY_CODE: dict[str, type[ToolscoutError]] = {
    "TOOL_VALIDATION_ERROR": ArgumentsInvalid,
    "AUTHORIZATION_REQUIRED": AuthorizationRequired,
    "CONFIRMATION_REQUIRED": ConfirmationRequired,
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
    # without a problem body: from a proxy in front of Toolscout, which cannot know the outcome
    502: ConnectionFailed,
    503: Unavailable,
    504: ConnectionFailed,
}


def error_from_response(response: httpx.Response) -> ToolscoutError:
    problem = _parse_problem(response)
    code = problem.get("code", f"status_{response.status_code}")
    error_type = _BY_CODE.get(code) or _BY_STATUS.get(response.status_code, ToolscoutError)
    return error_type(
        problem.get("detail") or f"answered with {response.status_code} {response.reason_phrase}".strip(),
        code=code,
        status=response.status_code,
        request_id=problem.get("request_id") or response.headers.get("X-Request-Id"),
        errors=problem.get("errors"),
        outcome=problem.get("outcome") or _default_outcome(error_type),
        cause=problem.get("cause"),
        server=problem.get("server"),
        tool=problem.get("tool"),
        choices=problem.get("choices"),
        retry_after=_parse_retry_after(response.headers.get("Retry-After")),
        authorization_url=problem.get("authorization_url"),
        confirmation_token=problem.get("confirmation_token"),
        expires_at=_parse_time(problem.get("expires_at")),
    )


def unreadable_response(response: httpx.Response) -> ToolscoutError:
    """The address belongs to another service, or to an incompatible version of Toolscout."""
    message = f"{response.request.url} returned a response that is not Toolscout's"
    return ToolscoutError(message, code="unreadable_answer", status=response.status_code)


def _parse_problem(response: httpx.Response) -> Json:
    """Return an empty dict if the error does not come from Toolscout."""
    with suppress(ValueError):
        problem = response.json()
        if isinstance(problem, dict) and "code" in problem:
            return problem
    return {}


def _default_outcome(error_type: type[ToolscoutError]) -> str | None:
    return {ToolFailed: "failed", ConnectionFailed: "unknown"}.get(error_type)


def _parse_retry_after(text: str | None) -> float | None:
    """Return the seconds; a date is ignored."""
    return float(text) if text is not None and text.isdecimal() else None


def _parse_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
