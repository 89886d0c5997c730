"""What an operator adds to the file of TOOLSCOUT_STDIO_SERVERS to allow a program of a client's configuration."""

import re
from typing import Any

import orjson

from app.catalog.client_config.config import ConfigEntry
from app.text.strict_json import Json

_HIDDEN = "…"
_SECRET = re.compile(r"token|secret|passw|api.?key|auth|bearer|credential|://[^/@\s]*@", re.IGNORECASE)


def render_stdio_snippet(entries: list[ConfigEntry]) -> str:
    """Return the entries in the format of that file. Values of variables, and arguments that may be credentials, are
    left out, for the operator to fill in."""
    programs = {entry.name: _to_program(entry.fields) for entry in entries if isinstance(entry.fields, dict)}
    return orjson.dumps(programs, option=orjson.OPT_INDENT_2).decode()


def _to_program(fields: Json) -> Json:
    arguments, env = fields.get("args"), fields.get("env")
    argv = [_to_text(fields.get("command")), *_hide_credentials(arguments if isinstance(arguments, list) else [])]
    return {"argv": argv, "env": dict.fromkeys(env, _HIDDEN)} if isinstance(env, dict) and env else {"argv": argv}


def _hide_credentials(arguments: list[Any]) -> list[str]:
    """An option that sounds like a credential hides the argument after it."""
    shown: list[str] = []
    is_value = False
    for argument in map(_to_text, arguments):
        option, equals, _ = argument.partition("=")
        is_secret = _SECRET.search(argument) is not None
        if is_value or (is_secret and not argument.startswith("-")):
            shown.append(_HIDDEN)
        else:
            shown.append(f"{option}={_HIDDEN}" if is_secret and equals else argument)
        is_value = is_secret and argument.startswith("-") and not equals
    return shown


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)
