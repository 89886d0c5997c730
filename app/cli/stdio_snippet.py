"""What an operator adds to the file of TOOLSCOUT_STDIO_SERVERS to allow a program of a client's configuration."""

import re
from itertools import pairwise
from pathlib import PurePath

import orjson

from app.catalog.client_config.config import ConfigEntry
from app.catalog.client_config.placeholders import PLACEHOLDER
from app.text.strict_json import Json

_HIDDEN = "…"
_CONTAINER_PROGRAMS = {"docker", "podman", "nerdctl"}
_VARIABLE = re.compile(r"((?:--env=)?[A-Za-z_]\w*)(=.*)?", re.DOTALL)
_SECRET = re.compile(r"token|secret|passw|api.?key|auth|bearer|credential|://[^/@\s]*@", re.IGNORECASE)


def render_stdio_snippet(entries: list[ConfigEntry]) -> str:
    """Return the entries in the format of that file. Values of variables, placeholders, and arguments that may be
    credentials are left out, for the operator to fill in."""
    programs = {entry.name: _to_program(entry.fields) for entry in entries if isinstance(entry.fields, dict)}
    return orjson.dumps(programs, option=orjson.OPT_INDENT_2).decode()


def _to_program(fields: Json) -> Json:
    arguments, env = fields.get("args"), fields.get("env")
    texts = [str(each) for each in (fields.get("command"), *(arguments if isinstance(arguments, list) else []))]
    hide = _hide_in_container if PurePath(texts[0]).stem in _CONTAINER_PROGRAMS else _hide
    argv = [PLACEHOLDER.sub(_HIDDEN, hide(option, text)) for option, text in pairwise(["", *texts])]
    return {"argv": argv, "env": dict.fromkeys(env, _HIDDEN)} if isinstance(env, dict) and env else {"argv": argv}


def _hide(option: str, argument: str) -> str:
    """An option that sounds like a credential hides the argument after it."""
    name, equals, _ = argument.partition("=")
    is_value = option.startswith("-") and "=" not in option and _SECRET.search(option) is not None
    is_secret = _SECRET.search(argument) is not None
    if is_value or (is_secret and not argument.startswith("-")):
        return _HIDDEN
    return f"{name}={_HIDDEN}" if is_secret and equals else argument


def _hide_in_container(option: str, argument: str) -> str:
    """`-e NAME` passes a variable on, and `-e NAME=VALUE` sets one: the name is no secret, whatever it sounds like."""
    variable = _VARIABLE.fullmatch(argument)
    if variable is None or not (option in ("-e", "--env") or argument.startswith("--env=")):
        return _hide(option, argument)
    return f"{variable[1]}={_HIDDEN}" if variable[2] else argument
