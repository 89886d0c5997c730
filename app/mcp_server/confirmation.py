"""Let the user of an MCP client confirm a destructive call, in a form that the client shows. No I/O.

The client repeats the call with the user's answer and with the state that it was given, which contains the token.
"""

from dataclasses import replace

from app.errors import ConfirmationRequired, Forbidden
from app.execution.confirmations import add_token_to_state
from app.mcp_client.connection import INPUT_REQUIRED
from app.mcp_server.responses import ERROR_META
from app.mcp_types import Dialogue
from app.text.strict_json import Json, dump_json

_QUESTION = "toolscout-confirmation"
_FIELD = "confirm"
_MAX_ARGUMENTS = 2_000
_CALL_ALONE = "the user must confirm this call, and nothing was run: call it alone, so that the user is asked"
_DECLINED = "the user did not confirm this call: nothing was run. Do not call it again unless the user asks for it"


def can_ask(dialogue: Dialogue) -> bool:
    """Return whether the client can show a form. A client that declares no mode of elicitation can show forms only."""
    elicitation = dialogue.capabilities.get("elicitation")
    return isinstance(elicitation, dict) and ("form" in elicitation or "url" not in elicitation)


def make_question(required: ConfirmationRequired, arguments: Json) -> Json:
    """Return the result that makes the client ask its user and repeat the call."""
    called = required.called_tool
    name = "this tool" if called is None else f"{called.tool} of {called.server}"
    text = dump_json(arguments).decode()
    shown = text if len(text) <= _MAX_ARGUMENTS else f"{text[:_MAX_ARGUMENTS]}… ({len(text)} characters)"
    schema = {
        "type": "object",
        "properties": {_FIELD: {"type": "boolean", "title": "Run it"}},
        "required": [_FIELD],
    }
    message = f"Run {name}? It says that it is destructive. Its arguments: {shown}"
    question = {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}
    return {
        "resultType": INPUT_REQUIRED,
        "inputRequests": {_QUESTION: question},
        "requestState": add_token_to_state(required.token, None),
    }


def refuse_in_batch(required: ConfirmationRequired) -> Json:
    """Return the error for one of several calls: alone, it makes the client ask its user. No model sees the token."""
    return {
        "content": [{"type": "text", "text": f"{required.code}: {_CALL_ALONE}"}],
        "isError": True,
        "_meta": {ERROR_META: {"code": required.code, "message": _CALL_ALONE}},
    }


def take_answer(dialogue: Dialogue) -> Dialogue:
    """Return the dialogue without the answer to our question. Raise `Forbidden` if the user did not confirm.

    The token stays in the state, from which the execution takes it.
    """
    responses = dict(dialogue.responses or {})
    answer = responses.pop(_QUESTION, None)
    if answer is None:
        return dialogue
    content = answer.get("content") if isinstance(answer, dict) and answer.get("action") == "accept" else None
    if not isinstance(content, dict) or content.get(_FIELD) is not True:
        raise Forbidden(_DECLINED)
    return replace(dialogue, responses=responses or None)
