"""When and how the tools of servers are listed and indexed."""

from pydantic import AliasChoices, BaseModel, Field, ValidationInfo, field_validator


class IndexingSettings(BaseModel):
    max_tools_per_server: int = Field(
        1_000, ge=1, description="maximum number of tools that are indexed for one server; further tools are refused"
    )
    index_concurrency: int = Field(
        2,
        ge=0,
        description="pushed lists of one user that this process indexes at the same time, of all users twice as many, "
        "and lists of servers that it embeds at the same time; 0 disables its worker",
    )
    listing_concurrency: int = Field(
        32,
        ge=1,
        le=1_000,
        description="servers whose tools this process lists at the same time; only `TOOLSCOUT_INDEX_CONCURRENCY` of "
        "the runs embed",
    )
    listings_per_user: int = Field(
        4, ge=1, le=1_000, description="servers of one user that this process lists at the same time"
    )
    listings_per_host: int = Field(
        8,
        ge=1,
        le=1_000,
        description="servers at one host and port that this process lists at the same time, of all users: a provider "
        "that does not answer takes no more of `TOOLSCOUT_LISTING_CONCURRENCY`",
    )
    pending_retry_s: float = Field(
        15.0, gt=0, description="seconds between attempts to embed tools whose embedding is pending"
    )
    run_lease_s: float = Field(
        60.0,
        ge=1,
        le=3600,
        description="seconds after which another process takes over an index run whose process has died",
    )
    reindex_every_s: float = Field(
        6 * 3600.0,
        ge=0,
        validation_alias=AliasChoices("TOOLSCOUT_REINDEX_EVERY", "reindex_every_s"),
        description="seconds after which the tools of a server are listed and indexed again, unless the server says "
        "itself how long its list is valid (`ttlMs`, within a minute and a day); 0 reindexes only on request",
    )
    known_examples: bool = Field(
        True,
        description="index tools of well-known public servers with the example messages that ship with Toolscout; a "
        "change takes effect for each server at its next index run",
    )
    categories: bool = Field(
        True,
        description="group each user's tools into categories in the background, after index runs; false keeps the "
        "categories that there are",
    )

    @field_validator("index_concurrency")
    @classmethod
    def _check_worker_has_slots(cls, value: int, info: ValidationInfo) -> int:
        if value == 0 and info.data.get("role") == "worker":
            raise ValueError("must be at least 1 with TOOLSCOUT_ROLE=worker, or the process would do nothing")
        return value
