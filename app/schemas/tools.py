"""Request and response models of tools and core tools."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints

from app.catalog.availability import Status
from app.catalog.core_tools import MAX_CORE_TOOLS
from app.catalog.visibility_policy import EnabledBy, HiddenBy, State
from app.indexing.sanitize import Flag
from app.schemas.base import Changes, Input, Output, Tags, given_fields, make_synonyms
from app.text.invisible import remove_hidden
from app.usage.examples import MAX_MESSAGE_CHARS, MAX_MESSAGES_PER_TOOL


def _require_words(message: str) -> str:
    if not (trimmed := message.strip()):
        raise ValueError("must have visible characters")
    return trimmed


ExampleMessage = Annotated[
    str, StringConstraints(max_length=MAX_MESSAGE_CHARS), AfterValidator(remove_hidden), AfterValidator(_require_words)
]

_MAX_OWN_DESCRIPTION = 8_000
_MAX_OWN_TITLE = 200
_SERVERS = "null: the server's"


def _require_own_words(text: str) -> str:
    if not remove_hidden(text).strip():
        raise ValueError("must have visible characters; null restores the server's text")
    return text


# Hidden characters are removed by the use case, which warns about them.
OwnTitle = Annotated[str, StringConstraints(max_length=_MAX_OWN_TITLE), AfterValidator(_require_own_words)]
OwnDescription = Annotated[str, StringConstraints(max_length=_MAX_OWN_DESCRIPTION), AfterValidator(_require_own_words)]

_PINNED = "comes first when the search fails and all tools are returned"


class AnnotationsBody(Input):
    """The annotations of MCP. What is given replaces the server's annotation of that name."""

    title: OwnTitle | None = None
    read_only_hint: bool | None = Field(None, alias="readOnlyHint", description="changes nothing")
    destructive_hint: bool | None = Field(None, alias="destructiveHint", description="may delete or overwrite")
    idempotent_hint: bool | None = Field(None, alias="idempotentHint", description="a repetition changes nothing more")
    open_world_hint: bool | None = Field(None, alias="openWorldHint", description="deals with the outside world")


class ToolChanges(Changes):
    enabled: bool | None = Field(True, description="overrides the rules; null: the rules decide again")
    tags: Tags = Field([], description="its own, in addition to those of its server and of rules")
    pinned: bool = Field(False, description=_PINNED)
    title: OwnTitle | None = Field(None, description=f"your own, in place of the server's; {_SERVERS}")
    description: OwnDescription | None = Field(
        None, description=f"your own, which is searched and given to models in place of the server's; {_SERVERS}"
    )
    annotations: AnnotationsBody | None = Field(
        None, description=f"your own, by name, over the server's; replaces all that you have set before; {_SERVERS}"
    )

    def to_changes(self) -> dict[str, Any]:
        """Return the fields that are given, as the use case takes them."""
        changes = given_fields(self)
        if self.annotations is not None:
            changes["annotations"] = self.annotations.model_dump(by_alias=True, exclude_none=True)
        return changes


class ExamplesBody(Input):
    synonyms = make_synonyms(messages="examples texts queries message")

    messages: list[ExampleMessage] = Field(
        max_length=MAX_MESSAGES_PER_TOOL,
        description="messages to which the tool is the answer, in the words of the people who write them",
    )


class ExamplesOut(Output):
    messages: list[str] = Field(description="those in words")
    learned: int = Field(description="how many were learnt from successful uses; their words are not stored")
    learned_against: int = Field(description="how many were learnt from reports that the tool was irrelevant")


class CoreToolsBody(Input):
    tools: list[Any] = Field(max_length=MAX_CORE_TOOLS, description="MCP tools")


class FindingOut(Output):
    flag: Flag
    where: str
    reason: str


class TextsOut(Output):
    title: str | None
    description: str
    annotations: dict[str, Any] | None


class OwnTextsOut(Output):
    title: str | None
    description: str | None
    annotations: dict[str, Any] | None


class ToolOut(Output):
    id: str = Field(description="the `tool_key` in all other calls; `SERVER.TOOL` and `SERVER_ID:TOOL` do, too")
    server_id: str
    server_name: str
    name: str
    title: str | None = Field(description="yours, if you have written one; as `description` and `annotations`")
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    annotations: dict[str, Any] | None
    original: TextsOut | None = Field(description="the server's texts, where yours replace some; otherwise null")
    own_texts: OwnTextsOut | None = Field(description="your texts alone; null if you have written none")
    own_texts_at: datetime | None = Field(description="when they were written")
    original_changed: bool = Field(
        description="whether the server's definition has changed since; writing your texts again, or null, clears it"
    )
    enabled: bool = Field(description="by its own switch, a rule, or the default")
    enabled_by: EnabledBy
    visible: bool = Field(description="whether it can be found")
    hidden_by: HiddenBy | None = Field(description="why it cannot")
    runnable: bool = Field(
        description="whether `POST /execute` runs it: it is visible, and Toolscout connects to its server"
    )
    server_status: Status = Field(
        description="the outcome of the last connection to its server; `push`: your backend runs the tool; "
        "`needs_authorization`: the user must sign in to the server before the tool can run"
    )
    tags: list[str] = Field(description="its own, its server's, and those that rules add")
    own_tags: list[str]
    pinned: bool = Field(description=_PINNED)
    state: State = Field(
        description="`changed`, or `new` if the server has added it after its first listing, until somebody approves "
        "the definition as it is stored"
    )
    definition_hash: str
    flags: list[Flag]
    findings: list[FindingOut] = Field(description="what the flags refer to, and where in the server's definition")
    tokens: int
    embedded: bool
    category_id: str | None
    category: str | None = Field(
        description="the name of its category; null until it is in one, some seconds after it was indexed"
    )
    updated_at: datetime


class ChangedToolOut(ToolOut):
    run_id: str | None = Field(
        description="the index run that was queued, if tags or texts have changed: the search uses them once it ends"
    )
    warnings: list[str] = Field(
        description="what was removed from your texts, and what of them reads like an instruction to the model"
    )


class ToolDetailsOut(ToolOut):
    icons: list[dict[str, Any]] | None = Field(
        description="as the server lists them: https URLs and images in `data:` URLs, others are left out"
    )
    execution: dict[str, Any] | None = Field(description="as the server lists it")
    own_findings: list[FindingOut] = Field(description="what of your own texts reads like an instruction to the model")
    known_examples: list[str] = Field(
        description="messages that ship with this version of Toolscout for this tool, if it is a known one; part of "
        "the index from the next index run of its server, unless the last one has added them already"
    )


class ChangeOut(Output):
    id: str
    at: datetime
    run_id: str
    fields: list[str] = Field(description="of the definition; `hidden_characters` if nothing visible changed")
    old: dict[str, Any]
    new: dict[str, Any]


class TagOut(Output):
    tag: str
    count: int = Field(description="visible tools that have it")


class CoreToolsOut(Output):
    tools: list[dict[str, Any]]
