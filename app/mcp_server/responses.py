"""Results of the meta-tools: structured content for programs, and a short text for models. No I/O.

`tool_results` renders those that show tools.
"""

from collections.abc import Iterator, Sequence

from app.catalog.definitions import ServerSummary
from app.errors import (
    ArgumentsInvalid,
    AuthorizationRequired,
    RateLimited,
    ServerUnreachable,
    ToolFailed,
    ToolscoutError,
)
from app.mcp_meta import filter_meta
from app.text.strict_json import Json

ERROR_META = "toolscout/error"
TRUNCATED_META = "toolscout/truncated"
_MAX_BRIEF = 160

_ADVICE = {
    "TOOL_NOT_FOUND": "Call tool_discovery and copy a toolKey from its results.",
    "TOOL_VALIDATION_ERROR": "Nothing was run. Correct the arguments, then call again.",
    "SERVER_CONNECTION_ERROR": "Nothing was run. Try again later, or use another tool.",
    "CONFIRMATION_REQUIRED": "Show the user the tool and the arguments, and ask whether to run it. Only if the user "
    "agrees, call again with the same arguments and with confirmationToken {confirmation_token!r}. Never confirm by "
    "yourself.",
    "unavailable": "Nothing was run. Try again in a few seconds.",
}
_PUSH_ADVICE = "Nothing was run, and trying again will not help: tell the user, or use another tool."
_LINK_ADVICE = "Nothing was run. Show the user this link to sign in, and call again once the user has done so:"
_SIGN_IN_ADVICE = "Nothing was run. Ask the user to sign in to the server, and call again after that."
_MAY_HAVE_RUN = "It may have run: find out before you call it again."
_MAX_SCHEMA = 10_000
_LONG_DEFINITION = "Its definition is long: tool_discovery with `describe` shows it."


def make_result(structured: Json, text: str) -> Json:
    return {"content": [{"type": "text", "text": text}], "structuredContent": structured}


def render_error(error: ToolscoutError, schema_shown_in: str | None = None) -> Json:
    """Tell a model what is wrong with which argument, and what to do next. `schema_shown_in` says where the same answer
    shows the input schema already."""
    lines = [f"{error.code}: {error.message}"]
    # The message contains the first five errors.
    lines += [f"- {'.'.join(map(str, item['loc']))}: {item['msg']}" for item in (error.errors or ())[5:]]
    if error.called_tool is not None:
        lines.append(f"The tool was {error.called_tool.tool} of {error.called_tool.server}.")
    lines += _advise(error, schema_shown_in)
    fields = {"code": error.code, "message": error.message, **error.all_members}
    if error.errors is not None:
        fields["errors"] = list(error.errors)
    return {
        "content": [{"type": "text", "text": "\n".join(lines)}],
        "isError": True,
        "_meta": {ERROR_META: fields},
    }


def _advise(error: ToolscoutError, schema_shown_in: str | None) -> Iterator[str]:
    if isinstance(error, ToolFailed) and error.outcome == "unknown":
        yield _MAY_HAVE_RUN
    elif isinstance(error, ServerUnreachable) and error.cause == "push":
        yield _PUSH_ADVICE
    elif isinstance(error, AuthorizationRequired):
        yield _SIGN_IN_ADVICE if error.authorization_url is None else f"{_LINK_ADVICE} {error.authorization_url}"
    elif isinstance(error, RateLimited):
        yield f"Nothing was run. Try again in {error.retry_after_s} seconds."
    elif error.code in _ADVICE:
        yield _ADVICE[error.code].format(**error.members)
    if isinstance(error, ArgumentsInvalid) and error.schema is not None:
        yield _describe_schema(error.schema, schema_shown_in)


def _describe_schema(schema: str, shown_in: str | None) -> str:
    if shown_in is not None:
        return f"The input schema is the same as in {shown_in}."
    return f"The input schema: {schema}" if len(schema) <= _MAX_SCHEMA else _LONG_DEFINITION


def mark_truncated(result: Json, limit: int, subject: str = "the whole result is") -> Json:
    """Add a notice for the model and a mark for programs to a result that was truncated."""
    notice = {"type": "text", "text": f"[truncated: {subject} larger than {limit} bytes]"}
    return result | {"content": [*result["content"], notice], "_meta": {TRUNCATED_META: True}}


def forward_result(result: Json) -> Json:
    """Return the server's result without the `_meta` keys that only Toolscout may set."""
    meta = filter_meta(result.get("_meta"))
    return {name: value for name, value in result.items() if name != "_meta"} | ({"_meta": meta} if meta else {})


def adapt_to_older_clients(result: Json) -> Json:
    """Older clients accept only objects as structured content; other values are also in the content, as text."""
    if isinstance(result.get("structuredContent", {}), dict):
        return result
    return {name: value for name, value in result.items() if name != "structuredContent"}


def render_servers(servers: Sequence[ServerSummary]) -> Json:
    items = [{"name": s.name, "description": s.description, "tools": s.tools, "status": s.status} for s in servers]
    lines = [f"{s.name} ({_describe_server(s)}) {shorten_description(s.description or '')}".rstrip() for s in servers]
    return make_result({"servers": items}, "\n".join(lines) or "no server has a tool that you may use")


def _describe_server(server: ServerSummary) -> str:
    return f"{server.tools} tools" + (", needs a sign-in" if server.status == "needs_authorization" else "")


def shorten_description(description: str) -> str:
    """Return the first line, shortened."""
    first_line = next(iter(description.strip().splitlines()), "").rstrip()
    return first_line if len(first_line) <= _MAX_BRIEF else f"{first_line[:_MAX_BRIEF].rstrip()}…"
