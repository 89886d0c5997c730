"""What one user may have and send."""

from pydantic import BaseModel, Field


class LimitSettings(BaseModel):
    rate_per_user: float = Field(
        300.0,
        ge=0,
        description="requests per second that each process accepts from one user, with bursts of four times as many; "
        "more are answered with 429; 0 disables the limit",
    )
    max_in_flight: int = Field(
        500,
        ge=0,
        description="requests that each process handles at the same time; more are answered with 503, or with 429 if "
        "one user has four fifths of them; requests without a valid key share a tenth as many slots of their own; 0 "
        "disables the limit",
    )
    max_servers: int = Field(
        200, ge=0, description="maximum number of servers of one user; who has more already keeps them"
    )
    max_projects: int = Field(
        100,
        ge=0,
        le=1_000,
        description="maximum number of projects of one user: each tool's search row names those that see it",
    )
    max_keys: int = Field(
        100, ge=0, description="maximum number of keys of one user that are neither revoked nor expired"
    )
    max_tags: int = Field(
        1_000,
        ge=0,
        description="maximum number of different tags of one user, of servers, tools and rules together",
    )
