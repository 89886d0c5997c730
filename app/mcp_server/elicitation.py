"""Ask the user of an MCP client to open a URL and sign in to a tool's server.

A client that can open URLs gets an elicitation. In the newest protocol it is the result of the call, `input_required`:
the client asks the user, and repeats the call with the user's answer. In the older one it is the error -32042, which
lists what the user has to do before the call is repeated. Every other client gets the link in words, as a tool error.
"""

import uuid
from typing import Any

from mcp import UrlElicitationRequiredError
from mcp_types import ElicitRequestURLParams

from app.errors import AuthorizationRequired
from app.mcp_client.connection import INPUT_REQUIRED
from app.mcp_types import Dialogue
from app.text.strict_json import Json

_SIGN_IN = "toolscout/sign-in"
"""The name of our request among those of an `input_required` result."""
_MARK = "-url"


def can_open_urls(capabilities: Any) -> bool:
    """Whether a client declares that it can show a URL to its user."""
    elicitation = capabilities.get("elicitation") if isinstance(capabilities, dict) else None
    return isinstance(elicitation, dict) and isinstance(elicitation.get("url"), dict)


def mark_session(session: str) -> str:
    return session + _MARK


def is_marked(session: str) -> bool:
    """Whether the client that began the session can open URLs."""
    return session.endswith(_MARK)


def has_sign_in_response(responses: Json | None) -> bool:
    """Whether the user was asked to sign in before, whatever the answer was."""
    return responses is not None and _SIGN_IN in responses


def remove_sign_in_response(responses: Json | None) -> Json | None:
    """Return the responses that are meant for the tool's server."""
    if responses is None or not has_sign_in_response(responses):
        return responses
    return {name: value for name, value in responses.items() if name != _SIGN_IN} or None


def make_sign_in_request(error: AuthorizationRequired, dialogue: Dialogue) -> Json:
    """Return the result that asks the user to sign in, in the newest protocol."""
    params = {"mode": "url", "message": _describe(error), "url": error.authorization_url}
    state = {} if dialogue.state is None else {"requestState": dialogue.state}
    requests = {_SIGN_IN: {"method": "elicitation/create", "params": params}}
    return {"resultType": INPUT_REQUIRED, "inputRequests": requests, **state}


def make_sign_in_error(error: AuthorizationRequired) -> UrlElicitationRequiredError:
    """Return the same for the older protocol."""
    assert error.authorization_url is not None  # noqa: S101 the caller has checked it
    request = ElicitRequestURLParams(
        message=_describe(error), url=error.authorization_url, elicitation_id=str(uuid.uuid4())
    )
    return UrlElicitationRequiredError([request], f"{error.code}: {error.message}")


def _describe(error: AuthorizationRequired) -> str:
    if error.called_tool is None:
        return "Sign in to the server, then try again."
    return f"Sign in to {error.called_tool.server}, so that the tool {error.called_tool.tool} can run."
