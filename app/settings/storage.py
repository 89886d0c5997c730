"""The database, and for how long it keeps what."""

from typing import Literal

from pydantic import AliasChoices, BaseModel, Field, SecretStr, ValidationInfo, field_validator

Pooler = Literal["none", "transaction", "transaction_prepared"]

_MIN_AUDIT_DAYS = 30
"""The database's function that deletes audit events refuses less."""


class StorageSettings(BaseModel):
    database_url: SecretStr | None = Field(
        None,
        validation_alias=AliasChoices("DATABASE_URL", "database_url"),
        description="URL of a Postgres database with pgvector >= 0.8.4, for the role that owns the tables; if not set, "
        "an embedded Postgres is started",
    )
    listen_database_url: SecretStr | None = Field(
        None,
        description="URL on which the service listens for notifications of other processes, if not `DATABASE_URL`: "
        "useful if that leads to a pooler which does not pass them on. Without them, processes look for queued runs "
        "and changed models every five seconds. With `TOOLSCOUT_DATABASE_POOLER` it is required, and also migrates and "
        "builds indexes: it leads to Postgres itself, to the same database with the same role",
    )
    database_pooler: Pooler = Field(
        "none",
        description="what `DATABASE_URL` leads to: `none` is Postgres itself, or a pooler in session mode; "
        "`transaction` a pooler in transaction mode, such as pgbouncer; `transaction_prepared` one that keeps prepared "
        "statements, such as pgbouncer 1.22 or later with `max_prepared_statements`",
    )
    read_database_url: SecretStr | None = Field(
        None,
        description="URL of a streaming replica of `DATABASE_URL`'s server, for the same role, directly or through a "
        "pooler in session mode: searches are read there where it has reached the user's newest version, and from the "
        "primary otherwise",
    )
    database_pool_size: int = Field(
        10,
        ge=1,
        le=500,
        description="size of the connection pool of each process; as many for the read replica, if there is one",
    )
    selection_log_days: int = Field(
        30,
        ge=1,
        le=3650,
        description="days for which messages are stored, for users whose setting `selection_log` is on",
    )
    decision_log_days: int = Field(
        7,
        ge=0,
        le=3650,
        description="days for which the decision log keeps what each search chose, without its message (about 2 KB a "
        "search); 0 switches the log off",
    )
    audit_days: int = Field(
        365,
        ge=0,
        le=36_500,
        description="days for which audit events are kept, at least 30; 0 keeps them for ever",
    )
    embedding_cache_days: int = Field(
        90,
        ge=0,
        le=36_500,
        description="days after which the cached vector of a text is deleted; the vectors of stored tools stay; 0 "
        "keeps them for ever",
    )
    embedding_cache_max_rows: int = Field(
        1_000_000,
        ge=0,
        description="maximum number of cached vectors (with the local model about 0.9 GB a million); the oldest are "
        "deleted first; 0 sets no limit",
    )

    @field_validator("read_database_url")
    @classmethod
    def _check_read_database_url(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if value is not None and info.data.get("database_url", "") is None:
            raise ValueError("the embedded Postgres has no replicas: set DATABASE_URL, too, or leave this out")
        return value

    @field_validator("audit_days")
    @classmethod
    def _check_audit_days(cls, value: int) -> int:
        if 0 < value < _MIN_AUDIT_DAYS:
            raise ValueError(f"must be at least {_MIN_AUDIT_DAYS}, or 0 to keep events for ever")
        return value

    @field_validator("database_pooler")
    @classmethod
    def _check_database_pooler(cls, value: Pooler, info: ValidationInfo) -> Pooler:
        if value == "none":
            return value
        if info.data.get("database_url", "") is None:
            raise ValueError("needs DATABASE_URL, which leads to the pooler")
        if info.data.get("listen_database_url", "") is None:
            raise ValueError(
                "needs TOOLSCOUT_LISTEN_DATABASE_URL, which leads to Postgres itself: migrations, indexes and "
                "notifications need a connection that is not shared"
            )
        return value

    @property
    def direct_database_url(self) -> SecretStr | None:
        """The URL whose connections are sessions of Postgres: for migrations, indexes and notifications.

        None: that of the embedded Postgres.
        """
        return self.database_url if self.database_pooler == "none" else self.listen_database_url

    @property
    def direct_database_setting(self) -> str:
        """The setting that `direct_database_url` comes from, for messages."""
        return "DATABASE_URL" if self.database_pooler == "none" else "TOOLSCOUT_LISTEN_DATABASE_URL"

    @property
    def uses_embedded_db(self) -> bool:
        return self.database_url is None
