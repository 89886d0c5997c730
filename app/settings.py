"""All settings of Toolscout. Each has a default that works on a laptop.

They are read from the environment and from `.env`; the environment takes precedence. The reference table of the
settings is written from the descriptions of the fields, and a test compares the two.
"""

import base64
import binascii
import json
import re
from difflib import get_close_matches
from ipaddress import ip_network
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import AliasChoices, Field, SecretStr, ValidationError, ValidationInfo, field_validator
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
DEMO_USER = "demo"
MIN_AUDIT_DAYS = 30
"""The database's function that deletes audit events refuses less."""
_PREFIX = "TOOLSCOUT_"
_TYPO_SIMILARITY = 0.75
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]+(:[0-9]{1,5})?")
_ORIGIN = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?/?")
_BASE_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?")
_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_REGISTRY_PATTERN = re.compile(r"\*|[A-Za-z0-9.*-]+/[A-Za-z0-9._*-]+")

_OPTIONAL_MEMBERS = ("client_secret", "token_endpoint_auth_method", "scope")
_CLIENT_MEMBERS = {"client_id", *_OPTIONAL_MEMBERS}
_CLIENT_AUTH_METHODS = ("none", "client_secret_basic", "client_secret_post")
_LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
_PYTHON_FACTORY = re.compile(r"python:[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")

Role = Literal["all", "web", "worker"]


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_file=".env",
        extra="ignore",
        populate_by_name=True,
        # compose and .env files often list a variable without a value, which means that it is not set
        env_ignore_empty=True,
    )

    environment: Literal["development", "production"] = Field(
        "development", description="`production` refuses to start with unsafe settings"
    )
    role: Role = Field(
        "all",
        description="`web` serves requests and queues index runs; `worker` processes index runs and serves only "
        "`/healthz`, `/readyz` and `/metrics`; `all` does both",
    )
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 picks a free port")
    data_dir: Path = Field(
        Path(".toolscout"),
        description="folder for the embedded Postgres, generated secrets and the graphs of local models",
    )
    served_hosts: str = Field(
        "",
        description="public host names under which clients and browsers reach Toolscout, comma-separated; IP "
        "addresses, names without a dot, `.local` and `.internal` are always accepted",
    )
    public_url: str | None = Field(
        None,
        description="URL under which browsers and other services reach Toolscout, such as `https://tools.example.com`; "
        "needed for sign-in to users' servers, except on the loopback interface",
    )
    trusted_proxies: str = Field(
        "127.0.0.1",
        validation_alias=AliasChoices("TOOLSCOUT_TRUSTED_PROXIES", "FORWARDED_ALLOW_IPS", "trusted_proxies"),
        description="addresses and networks of proxies whose `X-Forwarded-Proto` and `X-Forwarded-For` are believed, "
        "comma-separated; others' are ignored",
    )
    web_origins: str = Field(
        "",
        description="origins of web pages that may call Toolscout (CORS, all routes), comma-separated, such as "
        "`https://chat.example.com`",
    )
    redirect_origins: str = Field(
        "",
        description="origins to which a browser may be sent back after a sign-in to a server (`redirect_url`), "
        "comma-separated, such as `https://chat.example.com`; Toolscout's own is always allowed",
    )
    oauth_clients: SecretStr | None = Field(
        None,
        description="clients that you have registered at authorization servers, as JSON by issuer: "
        '`{"https://issuer.example": {"client_id": "…", "client_secret": "…"}}`; needed where a server allows neither '
        "client id metadata documents nor dynamic registration. Optional members: `token_endpoint_auth_method` "
        "(`client_secret_basic`, `client_secret_post`) and `scope`",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="lowest level of the messages that the service logs"
    )
    log_format: Literal["auto", "json", "text"] = Field(
        "auto",
        description="format of the log: `text` for people, `json` lines for machines; `auto` is text on a terminal and "
        "JSON elsewhere",
    )

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
        "and changed models every five seconds",
    )
    database_pool_size: int = Field(10, ge=1, le=500, description="size of the connection pool of each process")

    admin_api_key: SecretStr | None = Field(
        None,
        min_length=16,
        description="admin key that is always valid; if not set, the first start creates one and prints it once",
    )
    secret_key: SecretStr | None = Field(
        None,
        description="key that encrypts stored credentials: 32 bytes in base64; required with `DATABASE_URL`, generated "
        "in the data folder otherwise",
    )
    old_secret_keys: SecretStr = Field(
        SecretStr(""),
        description="previous secret keys, comma-separated; they decrypt credentials, but encrypt no new ones",
    )
    otel_endpoint: str | None = Field(
        None,
        validation_alias=AliasChoices("OTEL_EXPORTER_OTLP_ENDPOINT", "otel_endpoint"),
        description="OpenTelemetry collector that receives traces (OTLP over HTTP, such as `http://collector:4318`); "
        "requires `pip install 'toolscout[otel]'`",
    )
    metrics_key: SecretStr | None = Field(None, description="bearer token that `/metrics` requires, if set")

    embedding_provider: str = Field(
        "local",
        description="embedder for tools and messages: `local`, `openai` for any OpenAI-compatible endpoint, or "
        "`python:package.module:factory` for [your own](../guides/operations.md#an-embedder-of-your-own)",
    )
    embedding_model: str | None = Field(
        None, description="model name at the OpenAI-compatible endpoint, such as `text-embedding-3-small`"
    )
    local_model: Path | None = Field(None, description="path of a local model pack that replaces the built-in one")
    openai_api_key: SecretStr | None = Field(
        None,
        validation_alias=AliasChoices("OPENAI_API_KEY", "openai_api_key"),
        description="API key for the OpenAI-compatible endpoint",
    )
    openai_base_url: str | None = Field(
        None,
        validation_alias=AliasChoices("OPENAI_BASE_URL", "openai_base_url"),
        description="base URL of the OpenAI-compatible endpoint",
    )
    query_embed_budget_ms: int = Field(
        800,
        ge=10,
        le=60_000,
        description="milliseconds that an OpenAI-compatible endpoint, or an embedder of your own, may take to embed a "
        "query before falling back to lexical search; time in queues of this process, or in which it is too busy to "
        "receive the answer, does not count; the local model has no such limit",
    )
    index_embed_timeout_s: float = Field(
        60.0, gt=0, description="timeout in seconds for embedding one batch of tools while indexing"
    )
    catalog_embed_budget_s: float = Field(
        10.0, ge=0, le=300, description="seconds that `/catalog/search` may spend on embedding tools it has not seen"
    )
    query_cache_size: int = Field(
        10_000,
        ge=0,
        description="size of the cache of query embeddings in memory, as a number of embeddings with 384 dimensions "
        "(2.3 kB each); they are kept for five minutes, and those of one user take at most half of it",
    )
    breaker_failures: int = Field(
        5, ge=1, description="consecutive failures that open the circuit breaker of the embedder or the cloud"
    )
    breaker_retry_s: float = Field(
        15.0, gt=0, description="seconds after which an open circuit breaker lets one query through"
    )

    cloud_url: str | None = Field(
        None,
        description="base URL of another Toolscout, or of a service with the same `POST /catalog/search`, for projects "
        "whose `optimization` is `cloud`; it may be in your own network and use plain HTTP",
    )
    cloud_key: SecretStr | None = Field(
        None, description="API key for `TOOLSCOUT_CLOUD_URL`, sent as a bearer token: of a Toolscout, a user key"
    )
    cloud_timeout_s: float = Field(
        5.0,
        gt=0,
        le=60,
        description="seconds that a search through the cloud may take before the project is searched by words alone",
    )

    registry_url: str | None = Field(
        None,
        description="base URL of an MCP registry (API v0.1) in which users look servers up, such as "
        "`https://registry.modelcontextprotocol.io`; it may be in your own network and use plain HTTP; not set: off",
    )
    registry_allow: str = Field(
        "",
        description="servers of the registry that users see, by name, comma-separated; `*` stands for any text: "
        "`com.github/*, io.github.acme/*`; empty: all. It limits what is found in the registry, not the URLs that a "
        "user can register",
    )

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
    head_timeout_s: float = Field(
        10.0,
        gt=0,
        le=300,
        description="seconds in which a client must send the headers of a request; then the connection is closed",
    )
    body_timeout_s: float = Field(
        20.0,
        gt=0,
        le=3600,
        description="seconds in which a client must send the body of a request, and one more for each 64 KiB of it; a "
        "slower one is answered with 408. As long may a response stay unread before its connection is closed",
    )

    drain_s: float = Field(
        0.5,
        ge=0,
        le=60,
        description="seconds after the stop signal in which new requests are still accepted, while `/readyz` is 503",
    )

    glossary_file: Path | None = Field(
        None,
        description="text file with your own words for searches, one `phrase, phrase = plain English words` on a line: "
        "abbreviations, product names, words of another language",
    )
    max_tools: int = Field(
        10,
        ge=1,
        le=128,
        description="maximum number of kept and found tools in a response, unless the request, its project or its "
        "user sets a higher `limit`; core tools are not counted, and there is always room for 5 new tools beside "
        "those in `keep`",
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
    max_tools_per_server: int = Field(
        1_000, ge=1, description="maximum number of tools that are indexed for one server; further tools are refused"
    )
    search_ann_above: int = Field(
        20_000, ge=0, description="number of tools of one user above which the search uses the HNSW index"
    )
    snapshot_mb: int = Field(
        256,
        ge=0,
        description="megabytes of memory in which each process holds users' tools, so that their searches need no "
        "database; a tool takes about 4 KB; 0 searches in Postgres alone",
    )

    hold_changed_tools: bool = Field(
        False, description="hide a tool whose definition has changed, and do not run it, until it is approved"
    )
    hold_new_tools: bool = Field(
        False,
        description="hide a tool that a server adds after its first listing, and do not run it, until it is approved",
    )
    confirm_destructive: bool = Field(
        False,
        description="calls of tools whose annotations say `destructiveHint` need a confirmation of exactly this call",
    )
    find_failing_servers: bool = Field(
        True,
        description="keep finding the tools of a server whose last connection failed, marked with `server_status`",
    )

    index_concurrency: int = Field(
        2,
        ge=0,
        description="pushed lists of one user that this process indexes at the same time, of all users twice as many, "
        "and lists of servers that it embeds at the same time; 0 disables its worker",
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

    selection_log_days: int = Field(
        30,
        ge=1,
        le=3650,
        description="days for which messages are stored, for users whose setting `selection_log` is on",
    )

    known_examples: bool = Field(
        True,
        description="index tools of well-known public servers with the example messages that ship with Toolscout; a "
        "change takes effect for each server at its next index run",
    )
    learn_from_use: bool = Field(
        True,
        description="remember the vectors, not the texts, of messages for which a tool was used successfully, and rank "
        "by them; false: nothing is remembered, and what has been remembered does not count",
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

    discovery: bool = Field(
        True, description="`0` searches nobody's messages: every answer holds all tools, up to the limit"
    )
    rollout_percent: float = Field(
        100.0,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="percentage of the users whose messages are searched; the others get all their tools, up to the "
        "limit, unless `discovery_enabled` is set for the user",
    )

    outbound_allow: str = Field(
        "",
        description="MCP servers in your own network that Toolscout may connect to, as `host:port`, comma-separated; "
        "these may use plain HTTP",
    )
    oidc_issuer: str | None = Field(
        None,
        description="identity provider (OpenID Connect) whose access tokens are accepted beside API keys, as the URL "
        "that its tokens name in `iss`, such as `https://login.example.com/realms/main`; plain HTTP only on the "
        "loopback interface and for hosts in `TOOLSCOUT_OUTBOUND_ALLOW`",
    )
    oidc_audience: str | None = Field(
        None,
        validate_default=True,
        description="audience (`aud`) that an access token must have, such as `https://tools.example.com`; required "
        "with `TOOLSCOUT_OIDC_ISSUER`. A token for `TOOLSCOUT_PUBLIC_URL` is accepted, too, and one for the URL of an "
        "MCP endpoint at that endpoint",
    )
    oidc_user_claim: str = Field(
        "sub",
        min_length=1,
        description="claim of a token that is the id of its user; choose one that people cannot change themselves",
    )
    oidc_groups_claim: str = Field(
        "groups",
        min_length=1,
        description="claim that lists the groups of the user; dots lead into objects, as in `realm_access.roles`",
    )
    oidc_admin_groups: str = Field(
        "", description="groups whose members are administrators, comma-separated; without it, nobody is"
    )
    oidc_client_id: str | None = Field(
        None,
        description="client id of the console at the identity provider; with it, people can sign in to the console "
        "there. Register the redirect URL `{TOOLSCOUT_PUBLIC_URL}/console/sign-in/callback`",
    )
    oidc_client_secret: SecretStr | None = Field(
        None, description="secret of `TOOLSCOUT_OIDC_CLIENT_ID`; not set for a public client"
    )
    oidc_scopes: str = Field(
        "openid profile email",
        description="scopes that the console's sign-in and MCP clients ask for, separated by blanks, with `openid`",
    )
    oidc_name: str | None = Field(
        None, description="name of the identity provider on the sign-in page; by default the host of its URL"
    )
    stdio_servers: Path | None = Field(
        None, description="JSON file with the stdio servers that users may add: `{name: {argv: [...], env: {}}}`"
    )
    credential_url: str | None = Field(
        None,
        description="URL of a service of your own that is asked for the headers to send to a user's server, where the "
        "user has not signed in through Toolscout: `POST {user_id, server}` answers `{headers, expires_in}` or 404; it "
        "may be in your own network and use plain HTTP",
    )
    credential_key: SecretStr | None = Field(
        None, description="secret for `TOOLSCOUT_CREDENTIAL_URL`, sent as a bearer token"
    )
    credential_timeout_s: float = Field(
        5.0, gt=0, le=60, description="timeout in seconds for a request to `TOOLSCOUT_CREDENTIAL_URL`"
    )
    # The SDK waits for an older server that ignores the newer handshake. A shorter timeout would end every connection
    # to such a server during that wait.
    connect_timeout_s: float = Field(
        15.0, gt=0, le=300, description="timeout in seconds for connecting to an MCP server, handshake included"
    )
    list_timeout_s: float = Field(
        30.0, gt=0, le=600, description="timeout in seconds for listing the tools of a server"
    )
    call_timeout_s: float = Field(
        60.0, gt=0, le=3600, description="timeout in seconds for a tool call, unless the request sets `timeout_ms`"
    )
    max_call_timeout_s: float = Field(
        120.0,
        gt=0,
        le=3600,
        description="the highest timeout in seconds that a request can set with `timeout_ms`: a higher one counts as "
        "this one, or as `TOOLSCOUT_CALL_TIMEOUT_S` if that is higher",
    )
    upstream_idle_s: float = Field(
        300.0, gt=0, description="seconds after which an idle connection to an MCP server is closed"
    )
    upstream_connections: int = Field(
        500, ge=1, description="maximum number of MCP servers that each process is connected to at the same time"
    )
    upstream_max_bytes: int = Field(
        16 * 1024 * 1024,
        ge=1024,
        description="maximum size in bytes of one response of an MCP server, after decompression",
    )
    max_result_bytes: int = Field(
        1024 * 1024,
        ge=1024,
        description="maximum size in bytes of the result of a tool; a larger one is truncated and marked",
    )
    reindex_every_s: float = Field(
        6 * 3600.0,
        ge=0,
        validation_alias=AliasChoices("TOOLSCOUT_REINDEX_EVERY", "reindex_every_s"),
        description="seconds after which the tools of a server are listed and indexed again, unless the server says "
        "itself how long its list is valid (`ttlMs`, within a minute and a day); 0 reindexes only on request",
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

    mcp_list_cache_s: float = Field(
        3600.0,
        ge=0,
        le=86_400,
        allow_inf_nan=False,
        description="seconds for which lists of servers and tools are cached for MCP clients (`list_servers`, "
        "`list_tools`); a change of the catalogue is seen at once; 0 caches no lists",
    )

    demo: bool | None = Field(
        None,
        description="`1` creates a demo user with tools in an empty database, and lets it run the demo's MCP server; "
        "if not set, only in embedded Postgres",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 X_FILE variables replace its secrets folder
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        files = InitSettingsSource(settings_cls, _read_secret_files(env_settings, dotenv_settings))
        return init_settings, files, env_settings, dotenv_settings

    @field_validator("index_concurrency")
    @classmethod
    def _check_worker_has_slots(cls, value: int, info: ValidationInfo) -> int:
        if value == 0 and info.data.get("role") == "worker":
            raise ValueError("must be at least 1 with TOOLSCOUT_ROLE=worker, or the process would do nothing")
        return value

    @field_validator("audit_days")
    @classmethod
    def _check_audit_days(cls, value: int) -> int:
        if 0 < value < MIN_AUDIT_DAYS:
            raise ValueError(f"must be at least {MIN_AUDIT_DAYS}, or 0 to keep events for ever")
        return value

    @field_validator("embedding_provider")
    @classmethod
    def _check_embedding_provider(cls, value: str) -> str:
        if value not in ("local", "openai") and not _PYTHON_FACTORY.fullmatch(value):
            raise ValueError("must be local, openai or python:package.module:factory")
        return value

    @field_validator("cloud_url", "registry_url", "public_url")
    @classmethod
    def _check_base_url(cls, value: str | None) -> str | None:
        """Refuse what cannot be requested. Otherwise every request to it would fail."""
        if value is None:
            return None
        if not _BASE_URL.fullmatch(value):
            raise ValueError("must be a base URL without user, query or fragment, such as https://tools.example.com")
        urlsplit(value).port  # noqa: B018 raises ValueError beyond 65535
        return value

    @field_validator("registry_allow")
    @classmethod
    def _check_registry_allow(cls, value: str) -> str:
        if invalid := [entry for entry in _split_list(value) if not _REGISTRY_PATTERN.fullmatch(entry)]:
            raise ValueError(f"{invalid[0]!r} is not a pattern of server names, such as com.github/*")
        return value

    @field_validator("oauth_clients")
    @classmethod
    def _check_oauth_clients(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            _parse_oauth_clients(value.get_secret_value())
        return value

    @field_validator("outbound_allow")
    @classmethod
    def _check_outbound_allow(cls, value: str) -> str:
        """Refuse an entry that cannot match. Otherwise it is noticed only when a server cannot be reached."""
        if invalid := [entry for entry in _split_list(value) if not _HOST_AND_PORT.fullmatch(entry)]:
            raise ValueError(f"{invalid[0]!r} is not host:port, such as mcp.internal:8080 or [::1]:3001")
        return value

    @field_validator("oidc_issuer")
    @classmethod
    def _check_oidc_issuer(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None:
            return None
        if not _BASE_URL.fullmatch(value):
            raise ValueError("must be a URL without user, query or fragment, such as https://login.example.com")
        url = urlsplit(value)
        entry = url.netloc if url.port is not None else f"{url.netloc}:80"
        is_own = url.hostname in _LOOPBACK_HOSTS or entry.lower() in _split_list(info.data.get("outbound_allow", ""))
        if url.scheme != "https" and not is_own:
            raise ValueError(f"must be an https:// URL, unless TOOLSCOUT_OUTBOUND_ALLOW lists {entry}")
        return value

    @field_validator("oidc_audience")
    @classmethod
    def _check_oidc_audience(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None and info.data.get("oidc_issuer") is not None:
            raise ValueError("is required with TOOLSCOUT_OIDC_ISSUER: a token for any other service would be accepted")
        return value

    @field_validator("oidc_client_id", "oidc_audience")
    @classmethod
    def _check_oidc_is_configured(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("oidc_issuer", "") is None:
            raise ValueError("needs TOOLSCOUT_OIDC_ISSUER")
        return value

    @field_validator("oidc_scopes")
    @classmethod
    def _check_oidc_scopes(cls, value: str) -> str:
        if "openid" not in value.split():
            raise ValueError("must contain openid")
        return value

    @field_validator("web_origins", "redirect_origins")
    @classmethod
    def _check_origins(cls, value: str) -> str:
        if invalid := [entry for entry in _split_list(value) if not _ORIGIN.fullmatch(entry)]:
            raise ValueError(f"{invalid[0]!r} is not an origin, such as https://chat.example.com")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _check_trusted_proxies(cls, value: str) -> str:
        """Refuse what is no address: uvicorn would take it as a name that never matches."""
        for entry in _split_list(value):
            try:
                ip_network(entry)
            except ValueError as error:
                if entry != "*":
                    raise ValueError(f"{entry!r} is not an address or a network, such as 10.0.0.0/8") from error
        return value

    @field_validator("served_hosts")
    @classmethod
    def _check_served_hosts(cls, value: str) -> str:
        if invalid := [entry for entry in _split_list(value) if not _HOST_NAME.fullmatch(entry)]:
            raise ValueError(f"{invalid[0]!r} is not a host name, such as tools.example.com")
        return value

    @property
    def outbound_hosts(self) -> list[str]:
        return _split_list(self.outbound_allow)

    @property
    def registry_patterns(self) -> list[str]:
        return _split_list(self.registry_allow)

    @property
    def proxy_addresses(self) -> list[str]:
        addresses = _split_list(self.trusted_proxies)
        return ["*"] if "*" in addresses else addresses

    @property
    def allowed_hosts(self) -> list[str]:
        public = [] if self.public_url is None else [urlsplit(self.public_url.lower()).netloc]
        return [*_split_list(self.served_hosts.lower()), *public]

    @property
    def allowed_origins(self) -> list[str]:
        return [origin.rstrip("/") for origin in _split_list(self.web_origins.lower())]

    @property
    def allowed_redirects(self) -> list[str]:
        return [origin.rstrip("/") for origin in _split_list(self.redirect_origins.lower())]

    @property
    def base_url(self) -> str | None:
        """The URL under which browsers reach the service, without a trailing slash; None if nobody knows it.

        Without `public_url` it is known only to browsers on the same machine.
        """
        if self.public_url is not None:
            return self.public_url.rstrip("/")
        is_loopback = self.host in _LOOPBACK_HOSTS and self.port != 0
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}" if is_loopback else None

    @property
    def operator_clients(self) -> dict[str, dict[str, str]]:
        """The members of each OAuth client, by issuer."""
        return {} if self.oauth_clients is None else _parse_oauth_clients(self.oauth_clients.get_secret_value())

    @property
    def admin_groups(self) -> frozenset[str]:
        return frozenset(_split_list(self.oidc_admin_groups))

    @property
    def former_secret_keys(self) -> list[str]:
        return _split_list(self.old_secret_keys.get_secret_value())

    @property
    def uses_embedded_db(self) -> bool:
        return self.database_url is None

    @property
    def runs_worker(self) -> bool:
        """Whether this process processes index runs."""
        return self.role != "web" and self.index_concurrency > 0

    @property
    def seeds_demo(self) -> bool:
        return self.uses_embedded_db if self.demo is None else self.demo


def load_settings() -> Settings:
    """Read the settings. Raises `ConfigurationError`, which names each variable with an invalid value."""
    try:
        return Settings()
    except ValidationError as error:
        lines = [
            f"  {_get_variable(str(item['loc'][0]))}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors()
        ]
        raise ConfigurationError("\n".join(["invalid settings:", *lines])) from None


def _get_variable(location: str) -> str:
    """Return the variable that an error is about: pydantic reports the field, or the alias where there is one."""
    return location if location.isupper() else variable_name(location)


def variable_name(field: str) -> str:
    """Return the environment variable that sets a field."""
    alias = Settings.model_fields[field].validation_alias
    return str(alias.choices[0]) if isinstance(alias, AliasChoices) else f"{_PREFIX}{field.upper()}"


def secret_fields() -> list[str]:
    """Return the secret fields. Each can also be read from a file, whose path is in its variable with `_FILE`."""
    return [name for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation)]


def find_typos() -> list[str]:
    """Return a message for each variable, in the environment or in `.env`, whose name is almost that of a setting."""
    known = {variable_name(field) for field in Settings.model_fields}
    known |= {f"{variable_name(field)}_FILE" for field in secret_fields()}
    sources = EnvSettingsSource(Settings), DotEnvSettingsSource(Settings)
    present = {name.upper() for source in sources for name in source.env_vars}
    by_suffix = {name.removeprefix(_PREFIX): name for name in known if name.startswith(_PREFIX)}
    messages = []
    for name in sorted(present - known):
        if name.startswith(_PREFIX):
            nearest = get_close_matches(name.removeprefix(_PREFIX), by_suffix, n=1, cutoff=_TYPO_SIMILARITY)
            messages += [f"unknown setting {name}; did you mean {by_suffix[suffix]}?" for suffix in nearest]
    return messages


def _read_secret_files(*sources: PydanticBaseSettingsSource) -> dict[str, str]:
    variables: dict[str, str | None] = {}
    for source in sources:
        assert isinstance(source, EnvSettingsSource)  # noqa: S101 the environment and `.env`
        variables = {**source.env_vars, **variables}
    secrets = {}
    for field in secret_fields():
        name = variable_name(field)
        if path := variables.get(f"{name}_FILE".lower()):
            if variables.get(name.lower()):
                raise ConfigurationError(f"set either {name} or {name}_FILE, not both")
            secrets[field] = _read_secret_file(path, f"{name}_FILE")
    return secrets


def _read_secret_file(path: str, variable: str) -> str:
    try:
        secret = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{variable}: cannot read the file {path}") from error
    if not secret:
        raise ConfigurationError(f"{variable}: the file {path} is empty")
    return secret


def _split_list(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _parse_oauth_clients(text: str) -> dict[str, dict[str, str]]:
    try:
        clients = json.loads(text)
    except ValueError:
        raise ValueError("must be a JSON object") from None  # the cause quotes the secrets
    if not isinstance(clients, dict):
        raise ValueError("must be a JSON object, by issuer")
    for issuer, client in clients.items():
        if not _BASE_URL.fullmatch(issuer):
            raise ValueError(f"{issuer!r} is not an issuer, such as https://issuer.example")
        if not isinstance(client, dict) or not all(isinstance(value, str) for value in client.values()):
            raise ValueError(f"the client of {issuer} must be an object of strings")
        if not client.get("client_id") or client.keys() - _CLIENT_MEMBERS:
            raise ValueError(f"the client of {issuer} has `client_id` and, optionally, {', '.join(_OPTIONAL_MEMBERS)}")
        if client.get("token_endpoint_auth_method", "none") not in _CLIENT_AUTH_METHODS:
            raise ValueError(f"the client of {issuer}: token_endpoint_auth_method is one of {_CLIENT_AUTH_METHODS}")
    return clients


def decode_secret_key(text: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigurationError(
            "TOOLSCOUT_SECRET_KEY is not base64; generate one with `openssl rand -base64 32`"
        ) from error
    if len(key) != SECRET_KEY_BYTES:
        raise ConfigurationError(
            f"TOOLSCOUT_SECRET_KEY holds {len(key)} bytes, not {SECRET_KEY_BYTES}; "
            "generate one with `openssl rand -base64 32`"
        )
    return key
