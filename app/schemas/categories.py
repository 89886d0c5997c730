"""Request and response models of categories."""

from pydantic import Field

from app.schemas.base import Changes, Name, Output, make_synonyms


class CategoryChanges(Changes):
    synonyms = make_synonyms(name="own_name title label")

    name: Name | None = Field(None, description="your own name; null restores the automatic one")


class CategoryOut(Output):
    id: str
    name: str = Field(description="yours, if you have given one, or else the automatic one")
    own_name: str | None = Field(description="the name that you gave; null if you gave none")
    words: list[str] = Field(description="words that are typical of its tools")
    tools: int = Field(description="how many of its tools are visible to the caller")
    servers: list[str] = Field(description="the names of the servers of these tools, 10 at most")
