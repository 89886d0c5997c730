"""An MCP server with harmless tools that really run: clock, units, calculator, notes and text statistics.

It is a program of its own, `python -m app.demo.server`, which talks MCP over stdin and stdout. It reads no files, opens
no connections and keeps its notes in memory.
"""

import json
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Annotated, ParamSpec, TypeVar

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import BaseModel, Field

from app import __version__
from app.demo import calculator, clock, text_statistics, units
from app.demo.notes import NoteStore

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result", bound=BaseModel)

_MAX_EXACT = 2**53
"""Larger integers lose digits in most JSON parsers."""

_READS = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
_ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)
_DELETES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False)

server = MCPServer(
    "toolbox",
    title="Toolbox",
    version=__version__,
    instructions="Harmless tools to try things with: clock, time zones, units, calculator, notes, text statistics.",
    log_level="ERROR",
)


def _tool(title: str, annotations: ToolAnnotations) -> Callable[[Callable[_Parameters, _Result]], object]:
    """Register a tool. A `ValueError` is an answer for the model, which can correct its arguments."""

    def register(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        # async: the functions are quick, and on the event loop no two of them run at the same time
        @wraps(function)
        async def run(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> CallToolResult:
            try:
                result = function(*args, **kwargs).model_dump(mode="json")
            except ValueError as error:
                raise ToolError(str(error)) from error
            text = json.dumps(result, ensure_ascii=False)  # on one line, which the SDK's own text is not
            return CallToolResult(content=[TextContent(text=text)], structured_content=result)

        description = " ".join((function.__doc__ or "").split())
        server.add_tool(run, title=title, description=description, annotations=annotations)
        return function

    return register


TimeZone = Annotated[
    str,
    Field(
        max_length=100,
        description="Name of a time zone, such as Europe/Vienna, or of a city, such as Tokyo",
        examples=["Europe/Vienna", "Tokyo", "UTC"],
    ),
]


class LocalTime(BaseModel):
    timezone: str = Field(description="IANA name of the time zone")
    datetime: str = Field(description="Date, time and UTC offset in ISO 8601")
    weekday: str
    abbreviation: str = Field(description="What the time zone is called then, such as CET or CEST")


class ConvertedTime(BaseModel):
    source: LocalTime
    target: LocalTime
    difference_hours: float = Field(description="How far the target is ahead of the source; negative: behind it")


class Conversion(BaseModel):
    value: float
    from_unit: str = Field(description="Full name of the unit")
    result: float
    to_unit: str = Field(description="Full name of the unit")
    quantity: str = Field(description="What the units measure, such as length")


class Calculation(BaseModel):
    expression: str
    result: int | float
    formatted: str = Field(description="The result with all its digits")


class NoteOut(BaseModel):
    id: int
    text: str
    created_at: datetime


class NoteList(BaseModel):
    notes: list[NoteOut]
    count: int


class TextStatistics(BaseModel):
    characters: int
    characters_without_spaces: int
    words: int
    unique_words: int
    sentences: int
    paragraphs: int
    average_word_length: float
    reading_seconds: int = Field(description=f"At {text_statistics.WORDS_PER_MINUTE} words a minute")


@_tool("Current time", _READS)
def get_current_time(timezone: TimeZone) -> LocalTime:
    """Tell what time and date it is now in a city or time zone anywhere in the world."""
    return _describe(datetime.now(clock.find_zone(timezone)))


@_tool("Convert time", _READS)
def convert_time(
    time: Annotated[str, Field(max_length=20, description="Time of the day in the source zone: 14:30, or 2:30 pm")],
    source_timezone: TimeZone,
    target_timezone: TimeZone,
    date: Annotated[
        str | None, Field(max_length=20, description="Day in the source zone, such as 2026-11-18; without it: today")
    ] = None,
) -> ConvertedTime:
    """Convert a time of day from one time zone or city to another, and tell the difference between them in hours."""
    source, target = clock.find_zone(source_timezone), clock.find_zone(target_timezone)
    day = datetime.now(source).date() if date is None else clock.parse_date(date)
    local = clock.make_local(day, clock.parse_time(time), source)
    converted = clock.convert(local, target)
    offset = (converted.utcoffset() or local - local) - (local.utcoffset() or local - local)
    return ConvertedTime(
        source=_describe(local), target=_describe(converted), difference_hours=offset.total_seconds() / 3600
    )


@_tool("Convert units", _READS)
def convert_units(
    value: Annotated[float, Field(allow_inf_nan=False, description="How many of the first unit")],
    from_unit: Annotated[
        str, Field(max_length=50, description="Unit to convert from, by name or symbol", examples=["miles", "kg", "°F"])
    ],
    to_unit: Annotated[
        str, Field(max_length=50, description="Unit to convert to, by name or symbol", examples=["km", "pounds", "°C"])
    ],
) -> Conversion:
    """Convert a measurement into another unit: length, weight or mass, volume, area, temperature, speed, time, data
    size, energy, pressure. For example miles to kilometres, pounds to kilograms, Fahrenheit to Celsius."""
    source, target = units.find_unit(from_unit), units.find_unit(to_unit)
    result = units.convert(value, source, target)
    return Conversion(value=value, from_unit=source.name, result=result, to_unit=target.name, quantity=source.quantity)


@_tool("Calculator", _READS)
def calculate(
    expression: Annotated[
        str,
        Field(
            min_length=1,
            max_length=500,
            description="Arithmetic with + - * / // % **, parentheses, functions such as sqrt, round, log, sin, min, "
            "max, and the constants pi and e",
            examples=["(17.5 + 4) * 3", "sqrt(2) / 2", "round(199 * 1.2, 2)"],
        ),
    ],
) -> Calculation:
    """Calculate the value of an arithmetic expression: sums, products, percentages such as 0.2 * 45,
    powers, roots."""
    value = calculator.evaluate(expression)
    result = value if isinstance(value, float) or abs(value) <= _MAX_EXACT else float(value)
    return Calculation(expression=expression, result=result, formatted=str(value))


_notes = NoteStore()


@_tool("Add a note", _ADDS)
def add_note(
    text: Annotated[str, Field(min_length=1, max_length=2_000, description="What to write down")],
) -> NoteOut:
    """Write down a short note, to remember it for a while. Notes are kept in memory and are gone after some minutes
    without use."""
    return NoteOut.model_validate(_notes.add(text), from_attributes=True)


@_tool("List notes", _READS)
def list_notes() -> NoteList:
    """Show all notes that were written down, oldest first."""
    notes = [NoteOut.model_validate(note, from_attributes=True) for note in _notes.list_all()]
    return NoteList(notes=notes, count=len(notes))


@_tool("Delete a note", _DELETES)
def delete_note(
    note_id: Annotated[int, Field(ge=1, description="Id of the note, as list_notes shows it")],
) -> NoteOut:
    """Delete one note by its id, and return it."""
    return NoteOut.model_validate(_notes.delete(note_id), from_attributes=True)


@_tool("Text statistics", _READS)
def get_text_statistics(
    text: Annotated[str, Field(max_length=100_000, description="The text itself")],
) -> TextStatistics:
    """Count the words, characters, sentences and paragraphs of a text, and estimate how long it takes to read."""
    return TextStatistics.model_validate(text_statistics.measure(text), from_attributes=True)


def _describe(local: datetime) -> LocalTime:
    return LocalTime(
        timezone=str(local.tzinfo),
        datetime=local.isoformat(timespec="seconds"),
        weekday=local.strftime("%A"),
        abbreviation=local.tzname() or "",
    )


if __name__ == "__main__":
    server.run("stdio")
