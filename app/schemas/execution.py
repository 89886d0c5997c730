"""The request and response models of `POST /execute`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, field_validator, model_validator

from app.errors import ArgumentsInvalid, InvalidInput
from app.schemas.base import FieldError, Identifier, Input, ToolKey, make_synonyms
from app.schemas.kept_tools import ConversationId
from app.text.strict_json import parse_json

_MAX_TIMEOUT_MS = 3_600_000

IdempotencyKey = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[\x21-\x7e]+$")]


def _require_text(arguments: Any) -> Any:
    if not isinstance(arguments, str | None):
        raise ValueError("must be JSON text, as OpenAI sends it")
    return arguments


JsonText = Annotated[str | None, BeforeValidator(_require_text)]


class Function(BaseModel):
    name: str = Field(max_length=256)
    arguments: JsonText = None


class OpenAICall(BaseModel):
    """An item of `choices[0].message.tool_calls`."""

    type: Literal["function"]
    function: Function

    def parse(self) -> tuple[str, Any]:
        """Return the tool's alias and the arguments."""
        return self.function.name, _parse_arguments(self.function.arguments)


class ResponsesCall(BaseModel):
    """An item of `output` of the Responses API."""

    type: Literal["function_call"]
    name: str = Field(max_length=256)
    arguments: JsonText = None

    def parse(self) -> tuple[str, Any]:
        return self.name, _parse_arguments(self.arguments)


class AnthropicCall(BaseModel):
    """A block of a message's `content`."""

    type: Literal["tool_use"]
    name: str = Field(max_length=256)
    input: Any = None

    def parse(self) -> tuple[str, Any]:
        return self.name, {} if self.input is None else self.input


_CALL_TYPES: Mapping[str, type[BaseModel]] = {
    "function": OpenAICall,
    "function_call": ResponsesCall,
    "tool_use": AnthropicCall,
}


class ExecuteBody(Input):
    synonyms = make_synonyms(
        tool_key="tool tool_name tool_id name id key",
        arguments="args input params parameters tool_input",
        tool_call="call function_call",
        timeout_ms="timeout timeout_s timeout_seconds",
        project_id="project",
        discovery_id="discovery",
        conversation_id="conversation",
        confirmation_token="confirmation token confirm",  # noqa: S106 words, not a secret
    )

    tool_key: ToolKey | None = Field(
        None,
        description="the id from `POST /discover` or `GET /tools`, `SERVER.TOOL` or `SERVER_ID:TOOL`",
    )
    arguments: dict[str, Any] | None = Field(None, description="checked against the tool's input schema")
    tool_call: Annotated[OpenAICall | ResponsesCall | AnthropicCall, Field(discriminator="type")] | None = Field(
        None,
        description="instead of `tool_key` and `arguments`: the model's tool call in OpenAI's or Anthropic's form; its "
        "name is an `alias` from `POST /discover`, or a tool key",
    )
    timeout_ms: int | None = Field(
        None,
        ge=1,
        le=_MAX_TIMEOUT_MS,
        description="null: TOOLSCOUT_CALL_TIMEOUT_S; more than TOOLSCOUT_MAX_CALL_TIMEOUT_S counts as that",
    )
    project_id: Identifier | None = Field(None, description="only tools that are visible in this project")
    discovery_id: Identifier | None = Field(
        None,
        description="the discovery that returned the tool: a success teaches that the tool was right for its message; "
        "null: the newest discovery of the last 15 minutes that returned it",
    )

    conversation_id: ConversationId | None = Field(
        None, description="the conversation of `keep` in which the tool is called: it stays there for longer"
    )
    confirmation_token: str | None = Field(
        None,
        max_length=256,
        description="from the `CONFIRMATION_REQUIRED` that answered the same call, once the user has confirmed it; "
        "used up when the call is sent",
    )

    @field_validator("tool_call", mode="before")
    @classmethod
    def _parse_by_type(cls, call: Any) -> Any:
        if not isinstance(call, dict):
            return call
        if "type" not in call:
            raise ValueError("`type` is missing: set it to `function`, `function_call` or `tool_use`")
        # Parsed here because the union would put the type into the path of every error.
        call_type = _CALL_TYPES.get(call["type"]) if isinstance(call["type"], str) else None
        return call if call_type is None else call_type.model_validate(call)

    @model_validator(mode="after")
    def _check_exclusive_fields(self) -> "ExecuteBody":
        if (self.tool_key is None) == (self.tool_call is None):
            raise FieldError("set either `tool_key` and `arguments`, or `tool_call`", "tool_key")
        if self.tool_call is not None and self.arguments is not None:
            raise FieldError("`tool_call` has arguments of its own: leave out `arguments`", "arguments")
        return self


class ExecuteOut(BaseModel):
    result: dict[str, Any] = Field(description="as the server returned it: `content`, `structuredContent`, `isError`")
    tool_key: str
    server_id: str
    duration_ms: float
    truncated: bool


def _parse_arguments(arguments: str | None) -> Any:
    if not arguments:
        return {}
    try:
        return parse_json(arguments.encode())
    except InvalidInput as error:
        # This error's code tells callers to hand the error back to the model.
        raise ArgumentsInvalid("the model's arguments are not valid JSON") from error
