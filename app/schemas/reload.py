"""Response model of a reload."""

from pydantic import Field

from app.schemas.base import Output


class ReloadOut(Output):
    changed: list[str] = Field(description="the variables that have another value now, or whose file has other content")
    needs_restart: list[str] = Field(description="variables that have changed, but that only a restart applies")
    warnings: list[str] = Field(description="a message for each variable whose name is almost that of a setting")
