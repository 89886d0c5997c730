"""Base classes and shared field types of request and response models."""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError

from app.db.pagination import Page
from app.text.invisible import describe_problem, remove_hidden
from app.text.suggestions import describe_unknown_name

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


def require_visible(text: str) -> str:
    if (problem := describe_problem(text)) is not None:
        raise ValueError(problem)
    return text


def _require_trimmed(name: str) -> str:
    if name != name.strip():
        raise ValueError("must not begin or end with a space")
    return name


# The pattern is only documentation: it would be checked first, and its error says less.
_IN_ONE_LINE = Field(json_schema_extra={"pattern": r"^[^\x00-\x1f\x7f]+$"})
Visible = Annotated[str, StringConstraints(min_length=1, max_length=128), AfterValidator(require_visible), _IN_ONE_LINE]
"""A name that refers to something: no characters that a person cannot see."""
Name = Annotated[Visible, AfterValidator(_require_trimmed)]
"""A name that the caller gives to something: also without spaces at its ends, so that it cannot be mistaken."""
Tag = Annotated[Name, StringConstraints(max_length=64)]
Tags = Annotated[list[Tag], Field(max_length=64)]
Identifier = Annotated[str, StringConstraints(min_length=1, max_length=128)]
ToolKey = Annotated[str, StringConstraints(min_length=1, max_length=300)]
"""Longer than an `Identifier`: it may be `SERVER.TOOL`."""
Description = Annotated[str, StringConstraints(max_length=4_000), AfterValidator(remove_hidden)]
"""A text for people and models: characters that nobody can see are removed."""
ShownText = Annotated[str, AfterValidator(remove_hidden)]
"""A stored name or text: rows of older versions may hold characters that nobody can see."""


def _assume_utc(value: datetime) -> datetime:
    """Postgres would read a time without a zone in its own time zone."""
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


UtcDatetime = Annotated[datetime, AfterValidator(_assume_utc)]
"""A time without a zone is in UTC."""


class FieldError(ValueError):
    """Raised by a validator of a whole model: says which field, at `path`, is invalid."""

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.path = path


def locate_error(error: Mapping[str, Any]) -> tuple[str | int, ...]:
    """Return the path of one of pydantic's errors, with the field of a `FieldError`."""
    cause = error.get("ctx", {}).get("error")
    return (*error["loc"], *(cause.path if isinstance(cause, FieldError) else ()))


def make_synonyms(**words: str) -> Mapping[str, str]:
    """Return what each of the words means: `query="message text"` says that both mean the field `query`."""
    meanings = {"the header `X-User-Id`": "user user_id"} | words
    return {word: meant for meant, synonyms in meanings.items() for word in synonyms.split()}


def describe_errors(error: ValidationError) -> Iterator[str]:
    """Yield a sentence for each error, with the field that it is about."""
    for item in error.errors():
        field = ".".join(map(str, locate_error(item)))
        message = item["msg"].removeprefix("Value error, ")
        yield f"{field}: {message}" if field else message


class Input(BaseModel):
    """A request body: no unknown fields and no conversions, so that `"8"` is not 8 and `true` is not 1."""

    model_config = ConfigDict(extra="forbid", strict=True)

    synonyms: ClassVar[Mapping[str, str]] = make_synonyms()
    """Which field is meant by an unknown one, where the spelling does not tell."""

    @model_validator(mode="wrap")
    @classmethod
    def _mark_unknown_fields(cls, body: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Add this class to the errors about unknown fields: pydantic does not say which model they belong to."""
        try:
            return handler(body)
        except ValidationError as error:
            items = error.errors(include_url=False, include_input=False)
            if not any(_is_unmarked(item) for item in items):
                raise
            marked = [_copy_error(item, cls if _is_unmarked(item) else None) for item in items]
            raise ValidationError.from_exception_data(cls.__name__, marked) from error

    @classmethod
    def describe_unknown_field(cls, name: str) -> str:
        names = [field.alias or own_name for own_name, field in cls.model_fields.items()]
        return describe_unknown_name("field", name, names, cls.synonyms)


def _is_unmarked(item: Mapping[str, Any]) -> bool:
    return item["type"] == "extra_forbidden" and "model" not in item.get("ctx", {})


def _copy_error(item: Mapping[str, Any], model: type[Input] | None) -> InitErrorDetails:
    context = item.get("ctx", {}) | {"message": item["msg"]} | ({} if model is None else {"model": model})
    return InitErrorDetails(type=PydanticCustomError(item["type"], "{message}", context), loc=item["loc"], input=None)


class CamelCaseInput(Input):
    """A request body whose fields may also be named in camelCase, as MCP names them: `maxResults` is `max_results`."""

    @model_validator(mode="before")
    @classmethod
    def _rename_camel_case(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        names = cls._camel_case_names()
        if names.keys().isdisjoint(body):
            return body
        for alias, name in names.items():
            if alias in body and name in body:
                raise FieldError(f"give either `{name}` or `{alias}`, not both", name)
        return {names.get(key, key): value for key, value in body.items()}

    @classmethod
    @cache
    def _camel_case_names(cls) -> Mapping[str, str]:
        """Return the field that each camelCase name stands for, where the two differ."""
        return {alias: name for name in cls.model_fields if (alias := to_camel(name)) != name}


class Changes(Input):
    """The body of a PATCH: an absent field keeps its value.

    The defaults are never used. Its schema has none: clients that are generated from it would send them.
    """

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = handler(schema)
        for field in handler.resolve_ref_schema(described)["properties"].values():
            field.pop("default", None)
        return described


def given_fields(body: BaseModel) -> dict[str, Any]:
    """Return the fields that a PATCH names."""
    return {name: getattr(body, name) for name in body.model_fields_set}


class Output(BaseModel):
    """A response body, which can be validated from a domain object with attributes of the same names."""

    model_config = ConfigDict(from_attributes=True)


class Items(BaseModel, Generic[M]):
    items: list[M]
    next_cursor: str | None = None


def render_page(page: Page[T], render: Callable[[T], M]) -> Items[M]:
    return Items(items=[render(item) for item in page.items], next_cursor=page.next_cursor)
