"""Everything that an operator can set, each with a default that works on a laptop.

Read from the environment and from `.env`. The README's table lists them all; a test keeps it true.
"""

import base64
import binascii
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from app.errors import ConfigurationError

SECRET_KEY_BYTES = 32
_PREFIX = "TOOLSCOUT_"
_ALIKE = 0.75
_NAME = re.compile(r"[A-Za-z0-9._-]+(:[0-9]{1,5})?")
_ORIGIN = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?/?")
_PLACE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")


Role = Literal["all", "web", "worker"]


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_file=".env",
        extra="ignore",
        populate_by_name=True,
        # compose and .env files name a variable without giving it a value: that means "not set"
        env_ignore_empty=True,
    )

    environment: Literal["development", "production"] = Field(
        "development", description="`production` refuses unsafe settings at the start"
    )
    role: Role = Field(
        "all",
        description="`web` answers and queues index runs for others to do; `worker` does them, and answers nothing but "
        "`/healthz`, `/readyz` and `/metrics`; `all` is both",
    )
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on")
    data_dir: Path = Field(Path(".toolscout"), description="folder of the embedded Postgres and of generated secrets")
    served_hosts: str = Field(
        "",
        description="public names under which MCP clients and browsers reach us, comma-separated; addresses, names "
        "without a dot, `.local` and `.internal` always pass",
    )
    web_origins: str = Field(
        "",
        description="origins of web pages that may call us (all routes), comma-separated: `https://chat.example.com`",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="least level that is logged")
    log_format: Literal["auto", "json", "text"] = Field(
        "auto", description="`text` for people, `json` lines for machines; `auto`: text on a terminal, else JSON"
    )

    database_url: SecretStr | None = Field(
        None,
        validation_alias=AliasChoices("DATABASE_URL", "database_url"),
        description="the owner's URL of a Postgres with pgvector >= 0.8.4; absent: an embedded Postgres",
    )
    database_pool_size: int = Field(10, ge=1, le=500, description="connections kept for each process")

    admin_api_key: SecretStr | None = Field(
        None, min_length=16, description="the first admin key; absent: one is made and printed once"
    )
    secret_key: SecretStr | None = Field(
        None,
        description="32 bytes in base64 that seal stored credentials; made in the data folder for the embedded default",
    )
    old_secret_keys: SecretStr = Field(
        SecretStr(""), description="former secret keys, comma-separated: they still open what they sealed"
    )
    otel_endpoint: str | None = Field(
        None,
        validation_alias=AliasChoices("OTEL_EXPORTER_OTLP_ENDPOINT", "otel_endpoint"),
        description="an OpenTelemetry collector (OTLP over HTTP, such as `http://collector:4318`) that gets traces; "
        "needs `pip install 'toolscout[otel]'`",
    )
    metrics_key: SecretStr | None = Field(None, description="if set, `/metrics` asks for it as a bearer token")

    embedding_provider: Literal["local", "openai"] = Field(
        "local", description="who turns texts into vectors: `local` or `openai`"
    )
    embedding_model: str | None = Field(
        None, description="the model's name at an OpenAI-compatible endpoint (`text-embedding-3-small`)"
    )
    local_model: Path | None = Field(None, description="a model pack of your own instead of the one that ships")
    openai_api_key: SecretStr | None = Field(
        None, validation_alias=AliasChoices("OPENAI_API_KEY", "openai_api_key"), description="key of the endpoint"
    )
    openai_base_url: str | None = Field(
        None,
        validation_alias=AliasChoices("OPENAI_BASE_URL", "openai_base_url"),
        description="any OpenAI-compatible endpoint",
    )
    query_embed_budget_ms: int = Field(
        800, ge=10, le=60_000, description="how long a query may wait for its vector before it is searched by words"
    )
    index_embed_timeout_s: float = Field(60.0, gt=0, description="how long one batch of tools may take to embed")
    catalog_embed_budget_s: float = Field(
        10.0, ge=0, le=300, description="how long `/catalog/search` may embed tools it has not seen before"
    )
    query_cache_size: int = Field(10_000, ge=0, description="query vectors kept in memory, for five minutes")
    breaker_failures: int = Field(5, ge=1, description="failures in a row that open the embedder's circuit breaker")
    breaker_retry_s: float = Field(15.0, gt=0, description="seconds until an open breaker lets one query try again")

    rate_per_user: float = Field(
        300.0,
        ge=0,
        description="requests a second that one user may make of one process, after a burst of four times as many; "
        "beyond it 429; 0: no limit",
    )
    max_in_flight: int = Field(
        500,
        ge=0,
        description="requests that one process answers at once; beyond it 503, and 429 for a key that has four fifths "
        "of them; 0: no limit",
    )

    drain_s: float = Field(
        0.5,
        ge=0,
        le=60,
        description="seconds after the signal to stop in which requests are still taken, while `/readyz` is 503",
    )

    max_tools: int = Field(
        10,
        ge=1,
        le=128,
        description="most tools in an answer, core tools among them, unless `limit` asks for more; `keep` is on top",
    )
    max_tools_per_server: int = Field(1_000, ge=1, description="tools beyond it are refused, one by one")
    search_ann_above: int = Field(20_000, ge=0, description="users with more tools are searched through HNSW")

    hold_changed_tools: bool = Field(
        False, description="a tool whose definition has changed is neither found nor run until somebody approves it"
    )
    find_failing_servers: bool = Field(
        True, description="tools of a server whose last contact failed stay findable, marked by `server_status`"
    )

    index_concurrency: int = Field(2, ge=0, description="index runs that embed at once in this process; 0: no worker")
    pending_retry_s: float = Field(15.0, gt=0, description="seconds between tries to embed what is still pending")
    run_lease_s: float = Field(
        60.0, ge=1, le=3600, description="seconds after which a run whose process died is taken up by another"
    )

    selection_log_days: int = Field(
        30, ge=1, le=3650, description="how long messages are kept of users whose setting `selection_log` is on"
    )

    outbound_allow: str = Field(
        "", description="`host:port`, comma-separated: servers inside your own network, for which plain http will do"
    )
    stdio_servers: Path | None = Field(
        None, description="JSON file of stdio servers that users may choose: `{name: {argv: [...], env: {}}}`"
    )
    # longer than the SDK waits for an old server that ignores the newer greeting, or such a one could never be reached
    connect_timeout_s: float = Field(15.0, gt=0, le=300, description="how long an MCP server may take to shake hands")
    list_timeout_s: float = Field(30.0, gt=0, le=600, description="how long a server may take to list its tools")
    call_timeout_s: float = Field(60.0, gt=0, le=3600, description="how long a tool may run, unless `timeout_ms` says")
    upstream_idle_s: float = Field(300.0, gt=0, description="an idle connection to a server is closed after so long")
    upstream_connections: int = Field(500, ge=1, description="most servers connected at once, for each process")
    upstream_max_bytes: int = Field(
        16 * 1024 * 1024, ge=1024, description="most bytes of one answer of a server, after decompression"
    )
    max_result_bytes: int = Field(
        1024 * 1024, ge=1024, description="a tool's result is cut off, with a mark, beyond it"
    )
    reindex_every_s: float = Field(
        6 * 3600.0,
        ge=0,
        validation_alias=AliasChoices("TOOLSCOUT_REINDEX_EVERY", "reindex_every_s"),
        description="seconds after which a server is asked again what it offers; 0: only when told to",
    )
    listing_concurrency: int = Field(
        32, ge=1, le=1_000, description="servers listed at once in this process; only `INDEX_CONCURRENCY` of them embed"
    )

    demo: bool | None = Field(None, description="`1`: a demo user on an empty database; absent: only when embedded")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 a folder of theirs, which is not our way
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        files = InitSettingsSource(settings_cls, _secrets_in_files(env_settings, dotenv_settings))
        return init_settings, files, env_settings, dotenv_settings

    @field_validator("index_concurrency")
    @classmethod
    def _workers_work(cls, value: int, known: ValidationInfo) -> int:
        if value == 0 and known.data.get("role") == "worker":
            raise ValueError("a process with TOOLSCOUT_ROLE=worker would do nothing")
        return value

    @field_validator("outbound_allow")
    @classmethod
    def _exact_places(cls, value: str) -> str:
        """An entry that never matches would be found out by the user whose server cannot be reached."""
        if wrong := [entry for entry in _entries(value) if not _PLACE.fullmatch(entry)]:
            raise ValueError(f"{wrong[0]!r} is not host:port, such as mcp.internal:8080 or [::1]:3001")
        return value

    @field_validator("web_origins")
    @classmethod
    def _exact_origins(cls, value: str) -> str:
        if wrong := [entry for entry in _entries(value) if not _ORIGIN.fullmatch(entry)]:
            raise ValueError(f"{wrong[0]!r} is not an origin, such as https://chat.example.com")
        return value

    @field_validator("served_hosts")
    @classmethod
    def _exact_names(cls, value: str) -> str:
        if wrong := [entry for entry in _entries(value) if not _NAME.fullmatch(entry)]:
            raise ValueError(f"{wrong[0]!r} is not a name, such as tools.example.com")
        return value

    @property
    def outbound_hosts(self) -> list[str]:
        return _entries(self.outbound_allow)

    @property
    def allowed_hosts(self) -> list[str]:
        return _entries(self.served_hosts.lower())

    @property
    def allowed_origins(self) -> list[str]:
        return [origin.rstrip("/") for origin in _entries(self.web_origins.lower())]

    @property
    def former_secret_keys(self) -> list[str]:
        return _entries(self.old_secret_keys.get_secret_value())

    @property
    def embedded(self) -> bool:
        return self.database_url is None

    @property
    def runs_worker(self) -> bool:
        """Whether index runs are done in this process."""
        return self.role != "web" and self.index_concurrency > 0

    @property
    def wants_demo(self) -> bool:
        return self.embedded if self.demo is None else self.demo


def variable_of(field: str) -> str:
    """The environment's name for it."""
    alias = Settings.model_fields[field].validation_alias
    return str(alias.choices[0]) if isinstance(alias, AliasChoices) else f"{_PREFIX}{field.upper()}"


def secret_fields() -> list[str]:
    """Each of them can also be given as a file, which its variable with `_FILE` names."""
    return [name for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation)]


def find_typos() -> list[str]:
    """Of variables that are set, in the environment or in `.env`: what reads almost like a setting, and which."""
    known = {variable_of(name) for name in Settings.model_fields}
    known |= {f"{variable_of(name)}_FILE" for name in secret_fields()}
    sources = EnvSettingsSource(Settings), DotEnvSettingsSource(Settings)
    given = {name.upper() for source in sources for name in source.env_vars}
    ours = {name.removeprefix(_PREFIX): name for name in known if name.startswith(_PREFIX)}
    strange = sorted(name for name in given - known if name.startswith(_PREFIX))
    meant = {name: get_close_matches(name.removeprefix(_PREFIX), ours, n=1, cutoff=_ALIKE) for name in strange}
    return [f"{name} is no setting: is {ours[nearest]} meant?" for name, near in meant.items() for nearest in near]


def _secrets_in_files(*sources: PydanticBaseSettingsSource) -> dict[str, str]:
    given: dict[str, str | None] = {}
    for source in sources:
        assert isinstance(source, EnvSettingsSource)  # noqa: S101 the environment and `.env`
        given = {**source.env_vars, **given}
    named = {field: given.get(f"{variable_of(field)}_FILE".lower()) for field in secret_fields()}
    for field, path in named.items():
        if path and given.get(variable_of(field).lower()):
            name = variable_of(field)
            raise ConfigurationError(f"{name} and {name}_FILE are both set: which of them counts?")
    return {field: _secret_in(path, variable_of(field)) for field, path in named.items() if path}


def _secret_in(path: str, name: str) -> str:
    try:
        secret = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{name}_FILE names a file that cannot be read: {path}") from error
    if not secret:
        raise ConfigurationError(f"{name}_FILE names a file that holds nothing: {path}")
    return secret


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def decoded_secret_key(text: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigurationError(
            "TOOLSCOUT_SECRET_KEY is not base64; make one with `openssl rand -base64 32`"
        ) from error
    if len(key) != SECRET_KEY_BYTES:
        raise ConfigurationError(
            f"TOOLSCOUT_SECRET_KEY holds {len(key)} bytes, not 32; make one with `openssl rand -base64 32`"
        )
    return key
