"""The tables as SQLAlchemy metadata. The migrations create them; a test checks that both describe the same schema.

Every key of a tenant table starts with `user_id`, so that the schema can be hash-partitioned or distributed by user
without change.
"""

from pgvector.sqlalchemy import HALFVEC, SPARSEVEC
from sqlalchemy import (
    ARRAY,
    JSON,
    REAL,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Sequence,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

EVERYONE = ""
"""The `user_id` of core tools that all users have. No user can have this id."""

USER_RULES = ""
"""The `project_id` of rules that belong to the user and apply in every project."""

TERM_SPACE = 1_000_000_000
"""Terms are hashed into this many dimensions, the maximum of a `sparsevec`."""

metadata = MetaData()

catalog_versions = Sequence("catalog_versions", metadata=metadata)


def _required(name: str, kind: object, default: str | None = None) -> Column[object]:
    return Column(name, kind, nullable=False, server_default=None if default is None else text(default))  # type: ignore[arg-type]


def _created_at() -> Column[object]:
    return Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now())


users = Table(
    "users",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text),
    _required("settings", JSONB, "'{}'"),
    _required("discovery_enabled", Boolean, "true"),
    # increases with every change to what the user can see: part of cache keys
    _required("catalog_version", BigInteger, "nextval('catalog_versions')"),
    # exact values, not estimates: they decide between exact search and HNSW
    _required("tool_count", Integer, "0"),
    _required("ann", Boolean, "false"),
    _created_at(),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Text, primary_key=True),
    _required("kind", Text),
    Column("name", Text),
    _required("prefix", Text),
    Column("key_hash", LargeBinary, nullable=False, unique=True),
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE")),
    Column("project_id", Text),
    Column("expires_at", DateTime(timezone=True)),
    Column("last_used_at", DateTime(timezone=True)),
    Column("revoked_at", DateTime(timezone=True)),
    _created_at(),
    ForeignKeyConstraint(["user_id", "project_id"], ["projects.user_id", "projects.id"], ondelete="CASCADE"),
    Index("api_keys_user_id", "user_id"),
)

mcp_servers = Table(
    "mcp_servers",
    metadata,
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    _required("id", Text),
    _required("name", Text),
    _required("description", Text, "''"),
    _required("transport", Text),
    Column("url", Text),
    Column("sealed_headers", LargeBinary),
    _required("header_names", ARRAY(Text), "'{}'"),
    _required("tags", ARRAY(Text), "'{}'"),
    _required("tool_permissions", JSONB, "'{}'"),
    _required("enabled", Boolean, "true"),
    _required("status", Text, "'disconnected'"),
    Column("last_error", Text),
    # a stable code for the error
    Column("last_cause", Text),
    _required("config_version", Integer, "1"),
    _required("tool_count", Integer, "0"),
    _required("pending_count", Integer, "0"),
    _required("pending_tries", Integer, "0"),
    _created_at(),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    PrimaryKeyConstraint("user_id", "id"),
    UniqueConstraint("user_id", "name", name="mcp_servers_name"),
    Index("mcp_servers_id", "id"),
    Index("mcp_servers_pending", "user_id", "id", postgresql_where=text("pending_count > 0")),
)

mcp_tools = Table(
    "mcp_tools",
    metadata,
    _required("user_id", Text),
    _required("id", Text),
    _required("server_id", Text),
    _required("name", Text),
    Column("title", Text),
    _required("description", Text),
    # json, not jsonb: the model gets the keys in the server's order
    _required("input_schema", JSON),
    Column("output_schema", JSON(none_as_null=True)),
    Column("annotations", JSON(none_as_null=True)),
    Column("meta", JSON(none_as_null=True)),
    _required("tags", ARRAY(Text), "'{}'"),
    # the user's own switch, which overrides the rules; null: not set
    Column("switched", Boolean),
    # the visibility decision, see catalog/policy.py
    _required("enabled", Boolean, "true"),
    _required("enabled_by", Text, "'default'"),
    Column("hidden_by", Text),
    _required("pinned", Boolean, "false"),
    _required("state", Text, "'approved'"),
    _required("findings", JSONB, "'[]'"),
    # hash of the accepted definition: approved by a person, or from the first listing
    _required("approved_hash", Text),
    # soft delete: a tool that disappears and returns keeps its id, switch, tags and approval
    Column("vanished_at", DateTime(timezone=True)),
    _required("definition_hash", Text),
    _required("index_hash", Text),
    _required("enriched_description", Text),
    _required("tokens", Integer),
    _created_at(),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    PrimaryKeyConstraint("user_id", "id"),
    UniqueConstraint("user_id", "server_id", "name", name="mcp_tools_name"),
    ForeignKeyConstraint(["user_id", "server_id"], ["mcp_servers.user_id", "mcp_servers.id"], ondelete="CASCADE"),
    Index("mcp_tools_by_name", "user_id", "name"),
    Index(
        "mcp_tools_in_question",
        "user_id",
        "server_id",
        postgresql_where=text("state = 'changed' OR hidden_by IN ('changed', 'status')"),
    ),
)

mcp_tool_embeddings = Table(
    "mcp_tool_embeddings",
    metadata,
    _required("user_id", Text),
    _required("model", Text),
    _required("tool_id", Text),
    _required("server_id", Text),
    _required("server_name", Text),
    _required("tool_name", Text),
    # null while the embedder is down: the tool is found by lexical search until the vector is added
    Column("embedding", HALFVEC),
    Column("content_hash", Text),
    _required("lexical", SPARSEVEC(TERM_SPACE)),
    _required("tokens", Integer),
    # whether the tool can be found and run, see catalog/visibility.py
    _required("enabled", Boolean),
    _required("tags", ARRAY(Text)),
    # the projects that see the tool, by number, and the tags that their rules add, by project id
    _required("projects", ARRAY(BigInteger), "'{}'"),
    _required("project_tags", JSONB, "'{}'"),
    _required("ann", Boolean, "false"),
    # the kind of action, see search/intents.py
    _required("action", SmallInteger, "0"),
    # what past usage adds to the score, see usage/priors.py
    _required("prior", REAL, "0"),
    PrimaryKeyConstraint("user_id", "model", "tool_id"),
    ForeignKeyConstraint(["user_id", "tool_id"], ["mcp_tools.user_id", "mcp_tools.id"], ondelete="CASCADE"),
    Index("mcp_tool_embeddings_tool", "user_id", "tool_id"),
)

projects = Table(
    "projects",
    metadata,
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    _required("id", Text),
    _required("name", Text),
    # null: all servers of the user, including future ones
    Column("server_ids", ARRAY(Text)),
    # null: discovery is off
    Column("optimization", Text),
    _required("read_only", Boolean, "false"),
    Column("limit", Integer),
    Column("similarity_threshold", Float),
    _created_at(),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    PrimaryKeyConstraint("user_id", "id"),
    UniqueConstraint("user_id", "name", name="projects_name"),
)

tool_rules = Table(
    "tool_rules",
    metadata,
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    _required("project_id", Text),
    _required("position", Integer),
    _required("patterns", ARRAY(Text)),
    Column("server", Text),
    Column("enabled", Boolean),
    _required("tags", ARRAY(Text), "'{}'"),
    PrimaryKeyConstraint("user_id", "project_id", "position"),
)

tool_changes = Table(
    "tool_changes",
    metadata,
    _required("user_id", Text),
    _required("id", Text),
    _required("server_id", Text),
    _required("tool_id", Text),
    _required("run_id", Text),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    _required("fields", ARRAY(Text)),
    _required("old", JSON),
    _required("new", JSON),
    PrimaryKeyConstraint("user_id", "id"),
    ForeignKeyConstraint(["user_id", "tool_id"], ["mcp_tools.user_id", "mcp_tools.id"], ondelete="CASCADE"),
    Index("tool_changes_at", "user_id", "tool_id", "at", "id"),
)

# a single row: the settings for all users, from the service that started last
policy = Table(
    "policy",
    metadata,
    Column("id", Boolean, primary_key=True, server_default=text("true")),
    _required("hold_changed", Boolean, "false"),
    _required("find_failing", Boolean, "true"),
)

embedding_models = Table(
    "embedding_models",
    metadata,
    Column("id", Text, primary_key=True),
    _required("provider", Text),
    _required("name", Text),
    _required("dimension", Integer),
    # thresholds for its cosine similarities; null: the calibration that ships with the model
    Column("calibration", JSONB(none_as_null=True)),
    _required("active", Boolean, "false"),
    _created_at(),
    Index("embedding_models_active", "active", unique=True, postgresql_where=text("active")),
)

embedding_cache = Table(
    "embedding_cache",
    metadata,
    _required("model", Text),
    _required("text_hash", LargeBinary),
    _required("embedding", HALFVEC),
    _created_at(),
    PrimaryKeyConstraint("model", "text_hash"),
)

core_tools = Table(
    "core_tools",
    metadata,
    _required("user_id", Text),
    _required("name", Text),
    _required("id", Text),
    _required("position", Integer),
    _required("definition", JSON),
    _required("tokens", Integer),
    PrimaryKeyConstraint("user_id", "name"),
)

index_runs = Table(
    "index_runs",
    metadata,
    _required("user_id", Text),
    _required("id", Text),
    _required("server_id", Text),
    _required("state", Text, "'queued'"),
    _required("force", Boolean, "false"),
    _required("accept_empty", Boolean, "false"),
    # the pushed list as received, until the run has finished: an accepted list is never lost
    Column("payload", LargeBinary),
    _required("done", Integer, "0"),
    _required("total", Integer, "0"),
    _required("counts", JSONB, "'{}'"),
    _required("refused", JSONB, "'[]'"),
    _required("warnings", JSONB, "'[]'"),
    Column("error", JSONB),
    _required("attempts", Integer, "0"),
    # fencing token: a worker owns the run only while this is its token; every claim increments it
    _required("lease_token", BigInteger, "0"),
    Column("lease_until", DateTime(timezone=True)),
    _created_at(),
    Column("finished_at", DateTime(timezone=True)),
    # whether to fetch the list from the server; otherwise the payload or the stored tools are indexed
    _required("asks", Boolean, "true"),
    _required("asked_by", Text, "'system'"),
    Column("started_at", DateTime(timezone=True)),
    PrimaryKeyConstraint("user_id", "id"),
    ForeignKeyConstraint(["user_id", "server_id"], ["mcp_servers.user_id", "mcp_servers.id"], ondelete="CASCADE"),
    Index("index_runs_id", "id"),
    Index("index_runs_server", "user_id", "server_id", "created_at"),
    Index("index_runs_one_queued", "user_id", "server_id", unique=True, postgresql_where=text("state = 'queued'")),
    Index("index_runs_one_running", "user_id", "server_id", unique=True, postgresql_where=text("state = 'running'")),
    Index("index_runs_waiting", "created_at", postgresql_where=text("state IN ('queued', 'running')")),
)

# append-only: the app role may only select and insert
audit_events = Table(
    "audit_events",
    metadata,
    _required("user_id", Text),
    _required("id", Text),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    _required("actor", Text),
    _required("action", Text),
    Column("target", Text),
    _required("outcome", Text),
    Column("duration_ms", Float),
    Column("request_id", Text),
    PrimaryKeyConstraint("user_id", "id"),
    Index("audit_events_at", "user_id", "at", "id"),
    Index("audit_events_of_all", "at", "id"),
)

tool_calls = Table(
    "tool_calls",
    metadata,
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    _required("key", Text),
    # an HMAC of the request, so that its content is not stored
    _required("request", LargeBinary),
    Column("started_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    # a call without an answer after this time has been lost: its process died
    Column("given_up_at", DateTime(timezone=True), nullable=False),
    Column("answer", LargeBinary),  # sealed
    PrimaryKeyConstraint("user_id", "key"),
    Index("tool_calls_started_at", "started_at"),
)

# no foreign key to the tools: counting must not wait for deletions
tool_usage = Table(
    "tool_usage",
    metadata,
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    _required("tool_id", Text),
    _required("discovered", BigInteger, "0"),
    _required("called", BigInteger, "0"),
    _required("succeeded", BigInteger, "0"),
    _required("failed", BigInteger, "0"),
    _required("irrelevant", BigInteger, "0"),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    PrimaryKeyConstraint("user_id", "tool_id"),
)

# the primary key makes repeated feedback count once
tool_feedback = Table(
    "tool_feedback",
    metadata,
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    _required("discovery_id", Text),
    _required("tool_id", Text),
    _required("outcome", Text),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    PrimaryKeyConstraint("user_id", "discovery_id", "tool_id", "outcome"),
    Index("tool_feedback_at", "at"),
)

# one row per user and minute
discovery_stats = Table(
    "discovery_stats",
    metadata,
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    Column("at", DateTime(timezone=True), nullable=False),
    _required("discoveries", BigInteger),
    _required("degraded", BigInteger),
    _required("no_match", BigInteger),
    _required("cache_hits", BigInteger),
    _required("tokens_all", BigInteger),
    _required("tokens_selected", BigInteger),
    # number of discoveries in each bucket of usage/histogram.py
    _required("latencies", ARRAY(Integer)),
    PrimaryKeyConstraint("user_id", "at"),
    Index("discovery_stats_at", "at"),
)

# only for users who have enabled the selection log; the id is the discovery id
selections = Table(
    "selections",
    metadata,
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    _required("id", Text),
    Column("at", DateTime(timezone=True), nullable=False),
    _required("message", Text),
    _required("tools", JSONB),
    _required("strategy", Text),
    Column("degraded_reason", Text),
    _required("no_match", Boolean),
    PrimaryKeyConstraint("user_id", "id"),
    Index("selections_at", "user_id", "at", "id"),
    Index("selections_of_all", "at", "id"),
)
