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
    Date,
    DateTime,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
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

SHARED_OWNER = "*"
"""The `user_id` of shared servers. No user can have this id, and no caller can act for it by name."""

USER_RULES = ""
"""The `project_id` of rules that belong to the user and apply in every project."""

TERM_SPACE = 1_000_000_000
"""Terms are hashed into this many dimensions, the maximum of a `sparsevec`."""

metadata = MetaData()

catalog_versions = Sequence("catalog_versions", metadata=metadata)


def _not_null(name: str, kind: object, default: str | None = None) -> Column[object]:
    return Column(name, kind, nullable=False, server_default=None if default is None else text(default))  # type: ignore[arg-type]


def _created_at() -> Column[object]:
    return Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now())


users = Table(
    "users",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text),
    _not_null("settings", JSONB, "'{}'"),
    _not_null("discovery_enabled", Boolean, "true"),
    # whether `discovery_enabled` was set for this user; otherwise true leaves the choice to the roll-out
    _not_null("discovery_pinned", Boolean, "false"),
    # increases with every change to what the user can see: part of cache keys
    _not_null("catalog_version", BigInteger, "nextval('catalog_versions')"),
    # increases with every change to what is learnt from the user's outcomes: examples and priors; 0: nothing is
    _not_null("examples_version", BigInteger, "0"),
    # exact values, not estimates: they decide between exact search and HNSW
    _not_null("tool_count", Integer, "0"),
    _not_null("ann", Boolean, "false"),
    # the user's own values of the chance that any tool fits; null: the model's
    Column("calibration", JSONB),
    # sums over the outcomes of the user's answers, which move that chance
    _not_null("adaptation", JSONB, "'{}'"),
    # as the user's newest token or sign-in through the identity provider names them
    _not_null("groups", ARRAY(Text), "'{}'"),
    # the version of the catalogue whose tools are in categories; see indexing/categories
    _not_null("categories_version", BigInteger, "0"),
    _created_at(),
    # by `id COLLATE "C"`, which is not compared
    Index("users_without_categories", "id", postgresql_where=text("categories_version <> catalog_version")),
)

api_keys = Table(
    "api_keys",
    metadata,
    _not_null("id", Text),
    _not_null("kind", Text),
    Column("name", Text),
    _not_null("prefix", Text),
    Column("key_hash", LargeBinary, primary_key=True),
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE")),
    Column("project_id", Text),
    Column("expires_at", DateTime(timezone=True)),
    Column("last_used_at", DateTime(timezone=True)),
    Column("revoked_at", DateTime(timezone=True)),
    _created_at(),
    ForeignKeyConstraint(["user_id", "project_id"], ["projects.user_id", "projects.id"], ondelete="CASCADE"),
    Index("api_keys_id", "id"),
    Index("api_keys_user_id", "user_id"),
)

mcp_servers = Table(
    "mcp_servers",
    metadata,
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    _not_null("id", Text),
    _not_null("name", Text),
    _not_null("description", Text, "''"),
    _not_null("transport", Text),
    Column("url", Text),
    Column("sealed_headers", LargeBinary),
    _not_null("header_names", ARRAY(Text), "'{}'"),
    _not_null("tags", ARRAY(Text), "'{}'"),
    _not_null("tool_permissions", JSONB, "'{}'"),
    _not_null("enabled", Boolean, "true"),
    _not_null("status", Text, "'disconnected'"),
    Column("last_error", Text),
    # a stable code for the error
    Column("last_cause", Text),
    _not_null("config_version", Integer, "1"),
    _not_null("tool_count", Integer, "0"),
    _not_null("pending_count", Integer, "0"),
    _not_null("pending_tries", Integer, "0"),
    # when its tools were first listed or pushed: tools that appear later are new
    Column("listed_at", DateTime(timezone=True)),
    # when its list should be fetched again, by the server's own `ttlMs`; null: it does not say
    Column("list_again_at", DateTime(timezone=True)),
    # whether `server_connections` has a token
    _not_null("signed_in", Boolean, "false"),
    _created_at(),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    # of a member's copy of a shared server: the source's id, the version that was copied, whose credentials it uses
    Column("shared_id", Text),
    Column("shared_version", BigInteger),
    Column("shared_credentials", Text),
    PrimaryKeyConstraint("user_id", "id"),
    UniqueConstraint("user_id", "name", name="mcp_servers_name"),
    Index("mcp_servers_id", "id"),
    Index("mcp_servers_shared", "shared_id", "user_id", postgresql_where=text("shared_id IS NOT NULL")),
    Index("mcp_servers_pending", "user_id", "id", postgresql_where=text("pending_count > 0")),
)

# who may use a server of `SHARED_OWNER`
shared_servers = Table(
    "shared_servers",
    metadata,
    _not_null("user_id", Text),
    _not_null("server_id", Text),
    _not_null("everyone", Boolean, "false"),
    _not_null("groups", ARRAY(Text), "'{}'"),
    _not_null("user_ids", ARRAY(Text), "'{}'"),
    # whose credentials calls use: `member` or `operator`
    _not_null("credentials", Text, "'member'"),
    # increases with every change that the members' copies must follow
    _not_null("version", BigInteger, "1"),
    PrimaryKeyConstraint("user_id", "server_id"),
    ForeignKeyConstraint(["user_id", "server_id"], ["mcp_servers.user_id", "mcp_servers.id"], ondelete="CASCADE"),
)

# background work that one process at a time does for all
task_leases = Table(
    "task_leases",
    metadata,
    Column("name", Text, primary_key=True),
    _not_null("holder", Text),
    Column("lease_until", DateTime(timezone=True), nullable=False),
)

mcp_tools = Table(
    "mcp_tools",
    metadata,
    _not_null("user_id", Text),
    _not_null("id", Text),
    _not_null("server_id", Text),
    _not_null("name", Text),
    Column("title", Text),
    _not_null("description", Text),
    # json, not jsonb: the model gets the keys in the server's order
    _not_null("input_schema", JSON),
    Column("output_schema", JSON(none_as_null=True)),
    Column("annotations", JSON(none_as_null=True)),
    Column("meta", JSON(none_as_null=True)),
    Column("icons", JSON(none_as_null=True)),
    Column("execution", JSON(none_as_null=True)),
    # the user's own texts, which replace those of the server; see catalog/own_texts.py
    Column("own_title", Text),
    Column("own_description", Text),
    Column("own_annotations", JSON(none_as_null=True)),
    # hash of the server's definition when they were written, and the time; null if there are none
    Column("own_texts_based_on", Text),
    Column("own_texts_at", DateTime(timezone=True)),
    _not_null("tags", ARRAY(Text), "'{}'"),
    # the user's own switch, which overrides the rules; null: not set
    Column("switched", Boolean),
    # the visibility decision, see catalog/policy.py
    _not_null("enabled", Boolean, "true"),
    _not_null("enabled_by", Text, "'default'"),
    Column("hidden_by", Text),
    _not_null("pinned", Boolean, "false"),
    _not_null("state", Text, "'approved'"),
    _not_null("findings", JSONB, "'[]'"),
    # hash of the accepted definition: approved by a person, or the one that was listed first
    _not_null("approved_hash", Text),
    # soft delete: a tool that disappears and returns keeps its id, switch, tags and approval
    Column("vanished_at", DateTime(timezone=True)),
    _not_null("definition_hash", Text),
    # what the hash covers, see mcp_types.py; older processes do not set it
    _not_null("hash_version", SmallInteger, "1"),
    _not_null("index_hash", Text),
    _not_null("enriched_description", Text),
    _not_null("tokens", Integer),
    _created_at(),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    PrimaryKeyConstraint("user_id", "id"),
    UniqueConstraint("user_id", "server_id", "name", name="mcp_tools_name"),
    ForeignKeyConstraint(["user_id", "server_id"], ["mcp_servers.user_id", "mcp_servers.id"], ondelete="CASCADE"),
    Index("mcp_tools_by_name", "user_id", "name"),
    Index(
        "mcp_tools_own_texts",
        "user_id",
        "server_id",
        postgresql_where=text("own_texts_based_on IS NOT NULL"),
    ),
    Index(
        "mcp_tools_in_question",
        "user_id",
        "server_id",
        postgresql_where=text("state <> 'approved' OR hidden_by IN ('changed', 'new', 'status')"),
    ),
)

mcp_tool_embeddings = Table(
    "mcp_tool_embeddings",
    metadata,
    _not_null("user_id", Text),
    _not_null("model", Text),
    _not_null("tool_id", Text),
    _not_null("server_id", Text),
    _not_null("server_name", Text),
    _not_null("tool_name", Text),
    # null while the embedder is down: the tool is found by lexical search until the vector is added
    Column("embedding", HALFVEC),
    Column("content_hash", Text),
    _not_null("lexical", SPARSEVEC(TERM_SPACE)),
    _not_null("tokens", Integer),
    # whether the tool can be found and run, see catalog/visibility.py
    _not_null("enabled", Boolean),
    _not_null("tags", ARRAY(Text)),
    # the projects that see the tool, by number, and the tags that their rules add, by project id
    _not_null("projects", ARRAY(BigInteger), "'{}'"),
    _not_null("project_tags", JSONB, "'{}'"),
    _not_null("ann", Boolean, "false"),
    # the kind of action, see search/intents.py
    _not_null("action", SmallInteger, "0"),
    # what past usage adds to the score, see usage/priors.py
    _not_null("prior", REAL, "0"),
    PrimaryKeyConstraint("user_id", "model", "tool_id"),
    ForeignKeyConstraint(["user_id", "tool_id"], ["mcp_tools.user_id", "mcp_tools.id"], ondelete="CASCADE"),
    Index("mcp_tool_embeddings_tool", "user_id", "tool_id"),
    Index("mcp_tool_embeddings_prior", "user_id", "model", postgresql_where=text("prior <> 0")),
)

# what is indexed of the search rows whose `ann` is set, kept equal to them by triggers, see search/large_tenant.py
large_tenant_tools = Table(
    "large_tenant_tools",
    metadata,
    _not_null("user_id", Text),
    _not_null("model", Text),
    _not_null("tool_id", Text),
    # in lower case
    _not_null("name", Text),
    _not_null("terms", ARRAY(Integer)),
    Column("embedding", HALFVEC),
    PrimaryKeyConstraint("user_id", "model", "tool_id"),
    Index("large_tenant_tools_name", "user_id", "model", "name"),
)

# how many of the user's visible tools contain each term
large_tenant_terms = Table(
    "large_tenant_terms",
    metadata,
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    _not_null("model", Text),
    _not_null("term_id", Integer),
    _not_null("tools", Integer),
    PrimaryKeyConstraint("user_id", "model", "term_id"),
)

# the counts of the user, with an empty project id, and of each project; there are none until the indexes are complete
large_tenant_stats = Table(
    "large_tenant_stats",
    metadata,
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    _not_null("model", Text),
    _not_null("project_id", Text),
    # of the catalogue that was counted
    _not_null("version", BigInteger),
    _not_null("searched", Integer),
    _not_null("tokens", BigInteger),
    _not_null("tags", ARRAY(Text)),
    PrimaryKeyConstraint("user_id", "model", "project_id"),
)

# groups of a user's tools, made from their vectors by indexing/categories
tool_categories = Table(
    "tool_categories",
    metadata,
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    _not_null("id", Text),
    _not_null("name", Text),
    # the name that a person gave
    Column("own_name", Text),
    _not_null("words", ARRAY(Text), "'{}'"),
    # the search terms of each word, and of each word of the automatic name
    _not_null("terms", JSONB, "'{}'"),
    # null for the tools that are similar to no others
    Column("centroid", HALFVEC),
    _created_at(),
    PrimaryKeyConstraint("user_id", "id"),
)

# no foreign key to the tools, which would lock, and so rewrite, the wide row of each
tool_category_members = Table(
    "tool_category_members",
    metadata,
    _not_null("user_id", Text),
    _not_null("tool_id", Text),
    _not_null("category_id", Text),
    # a hash of what was searched of the tool when it was put there
    _not_null("content", BigInteger),
    PrimaryKeyConstraint("user_id", "tool_id"),
    ForeignKeyConstraint(
        ["user_id", "category_id"], ["tool_categories.user_id", "tool_categories.id"], ondelete="CASCADE"
    ),
    Index("tool_category_members_category", "user_id", "category_id"),
)

# what tools are put into categories by
tool_clusterings = Table(
    "tool_clusterings",
    metadata,
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    _not_null("model", Text),
    _not_null("mean", HALFVEC),
    # how many tools were added, changed or removed since the categories were made
    _not_null("changed", Integer, "0"),
    # fencing token: increases with every write, and with every name that a person gives
    _not_null("revision", BigInteger, "1"),
    Column("made_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    PrimaryKeyConstraint("user_id"),
    Index("tool_clusterings_model", "model", "user_id"),
)

projects = Table(
    "projects",
    metadata,
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    _not_null("id", Text),
    _not_null("name", Text),
    # null: all servers of the user, including future ones
    Column("server_ids", ARRAY(Text)),
    # null: discovery is off
    Column("optimization", Text),
    _not_null("read_only", Boolean, "false"),
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
    _not_null("project_id", Text),
    _not_null("position", Integer),
    _not_null("patterns", ARRAY(Text)),
    Column("server", Text),
    Column("enabled", Boolean),
    _not_null("tags", ARRAY(Text), "'{}'"),
    PrimaryKeyConstraint("user_id", "project_id", "position"),
)

tool_changes = Table(
    "tool_changes",
    metadata,
    _not_null("user_id", Text),
    _not_null("id", Text),
    _not_null("server_id", Text),
    _not_null("tool_id", Text),
    _not_null("run_id", Text),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    _not_null("fields", ARRAY(Text)),
    _not_null("old", JSON),
    _not_null("new", JSON),
    PrimaryKeyConstraint("user_id", "id"),
    ForeignKeyConstraint(["user_id", "tool_id"], ["mcp_tools.user_id", "mcp_tools.id"], ondelete="CASCADE"),
    Index("tool_changes_at", "user_id", "tool_id", "at", "id"),
)

# of no user: lists that their servers declare public, by the hash of transport and URL
public_listings = Table(
    "public_listings",
    metadata,
    Column("key", LargeBinary, primary_key=True),
    # the tools as JSON; null: the list is not shared
    Column("tools", LargeBinary),
    _not_null("size", Integer, "0"),
    # when the request was sent
    Column("fetched_at", DateTime(timezone=True)),
    Column("expires_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    # when the server announced a change
    Column("changed_at", DateTime(timezone=True)),
    Column("lease_token", Text),
    Column("lease_until", DateTime(timezone=True)),
    Index("public_listings_expires_at", "expires_at"),
)

# a single row: the settings for all users, from the service that started last
policy = Table(
    "policy",
    metadata,
    Column("id", Boolean, primary_key=True, server_default=text("true")),
    _not_null("hold_changed", Boolean, "false"),
    _not_null("find_failing", Boolean, "true"),
    _not_null("hold_new", Boolean, "false"),
)

embedding_models = Table(
    "embedding_models",
    metadata,
    Column("id", Text, primary_key=True),
    _not_null("provider", Text),
    _not_null("name", Text),
    _not_null("dimension", Integer),
    # thresholds for its cosine similarities; null: the calibration that ships with the model
    Column("calibration", JSONB(none_as_null=True)),
    _not_null("active", Boolean, "false"),
    _created_at(),
    Index("embedding_models_active", "active", unique=True, postgresql_where=text("active")),
)

embedding_cache = Table(
    "embedding_cache",
    metadata,
    _not_null("model", Text),
    _not_null("text_hash", LargeBinary),
    _not_null("embedding", HALFVEC),
    _created_at(),
    PrimaryKeyConstraint("model", "text_hash"),
    Index("embedding_cache_created_at", "created_at"),
)

core_tools = Table(
    "core_tools",
    metadata,
    _not_null("user_id", Text),
    _not_null("name", Text),
    _not_null("id", Text),
    _not_null("position", Integer),
    _not_null("definition", JSON),
    _not_null("tokens", Integer),
    PrimaryKeyConstraint("user_id", "name"),
)

index_runs = Table(
    "index_runs",
    metadata,
    _not_null("user_id", Text),
    _not_null("id", Text),
    _not_null("server_id", Text),
    _not_null("state", Text, "'queued'"),
    _not_null("force", Boolean, "false"),
    _not_null("accept_empty", Boolean, "false"),
    # the pushed list as received, until the run has finished: an accepted list is never lost
    Column("payload", LargeBinary),
    _not_null("done", Integer, "0"),
    _not_null("total", Integer, "0"),
    _not_null("counts", JSONB, "'{}'"),
    _not_null("refused", JSONB, "'[]'"),
    _not_null("warnings", JSONB, "'[]'"),
    Column("error", JSONB),
    _not_null("attempts", Integer, "0"),
    # fencing token: a worker owns the run only while this is its token; every claim increments it
    _not_null("lease_token", BigInteger, "0"),
    Column("lease_until", DateTime(timezone=True)),
    _created_at(),
    Column("finished_at", DateTime(timezone=True)),
    # whether to fetch the list from the server; otherwise the payload or the stored tools are indexed
    _not_null("asks", Boolean, "true"),
    _not_null("asked_by", Text, "'system'"),
    Column("started_at", DateTime(timezone=True)),
    PrimaryKeyConstraint("user_id", "id"),
    ForeignKeyConstraint(["user_id", "server_id"], ["mcp_servers.user_id", "mcp_servers.id"], ondelete="CASCADE"),
    Index("index_runs_id", "id"),
    Index("index_runs_server", "user_id", "server_id", "created_at"),
    Index("index_runs_one_queued", "user_id", "server_id", unique=True, postgresql_where=text("state = 'queued'")),
    Index("index_runs_one_running", "user_id", "server_id", unique=True, postgresql_where=text("state = 'running'")),
    Index("index_runs_waiting", "created_at", postgresql_where=text("state IN ('queued', 'running')")),
)

# only in a distributed database: a row for each run that was queued, for when a node is away, and the runs of all users
# cannot be read. Rows are never updated: two transactions that queue several runs of a user could deadlock.
waiting_users = Table(
    "waiting_users",
    metadata,
    Column("user_id", Text, nullable=False),
    Column("id", BigInteger, Identity(always=True), nullable=False),
    Column("since", DateTime(timezone=True), nullable=False, server_default=func.now()),
    PrimaryKeyConstraint("user_id", "id"),
    Index("waiting_users_id", "id"),
)

# append-only: the app role may only select and insert, and deletes what has expired through a function
audit_events = Table(
    "audit_events",
    metadata,
    _not_null("user_id", Text),
    _not_null("id", Text),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    _not_null("actor", Text),
    _not_null("action", Text),
    Column("target", Text),
    _not_null("outcome", Text),
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
    _not_null("key", Text),
    # an HMAC of the request, so that its content is not stored
    _not_null("request", LargeBinary),
    Column("started_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    # a call without an answer after this time has been lost: its process died
    Column("given_up_at", DateTime(timezone=True), nullable=False),
    Column("answer", LargeBinary),  # sealed
    PrimaryKeyConstraint("user_id", "key"),
    Index("tool_calls_started_at", "started_at"),
)

# the account of a user at a server: what sign-in (OAuth) has given us
server_connections = Table(
    "server_connections",
    metadata,
    _not_null("user_id", Text),
    _not_null("server_id", Text),
    # sealed: who we are to the authorization server, and its metadata; null if the user has never signed in
    Column("sealed_context", LargeBinary),
    # sealed: access and refresh token; null if the user must sign in (again)
    Column("sealed_tokens", LargeBinary),
    Column("issuer", Text),
    Column("resource", Text),
    Column("scope", Text),
    # what a call was refused for want of: the next sign-in asks for it, too
    Column("required_scope", Text),
    Column("expires_at", DateTime(timezone=True)),
    # increases with every new token
    _not_null("version", Integer, "1"),
    Column("refreshed_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    # the process that refreshes the token has it until then
    Column("lease_until", DateTime(timezone=True)),
    _created_at(),
    PrimaryKeyConstraint("user_id", "server_id"),
    ForeignKeyConstraint(["user_id", "server_id"], ["mcp_servers.user_id", "mcp_servers.id"], ondelete="CASCADE"),
)

# sign-ins that have begun; a row is deleted when the browser comes back
authorization_requests = Table(
    "authorization_requests",
    metadata,
    _not_null("user_id", Text),
    _not_null("id", Text),
    _not_null("server_id", Text),
    # sealed: the PKCE verifier, who we are to the authorization server, and its metadata
    _not_null("sealed", LargeBinary),
    Column("redirect_url", Text),
    # a hash of the cookie of the browser that began it, where it began in a browser
    Column("browser", LargeBinary),
    _not_null("actor", Text),
    _created_at(),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    PrimaryKeyConstraint("user_id", "id"),
    ForeignKeyConstraint(["user_id", "server_id"], ["mcp_servers.user_id", "mcp_servers.id"], ondelete="CASCADE"),
    Index("authorization_requests_expires_at", "expires_at"),
)

# calls of destructive tools that wait for a confirmation, see execution/confirmations.py
call_confirmations = Table(
    "call_confirmations",
    metadata,
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    _not_null("token_hash", LargeBinary),
    # an HMAC of the call, so that its arguments are not stored
    _not_null("call", LargeBinary),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    PrimaryKeyConstraint("user_id", "token_hash"),
    Index("call_confirmations_expires_at", "expires_at"),
)

# keys, aliases, hashes and turns, never a text
conversations = Table(
    "conversations",
    metadata,
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    # of the caller's key, which may be bound to a project; empty otherwise
    _not_null("project_id", Text),
    _not_null("id", Text),
    # changes with every write: a writer replaces only what it has read
    _not_null("revision", Text),
    _not_null("turn", Integer),
    # of each tool: key, alias, definition hash, the turn it was added, the turn it was removed or null
    _not_null("spans", JSONB),
    # the turn of a tool's last call, by its key
    _not_null("calls", JSONB),
    _not_null("oldest_turn", Integer),
    Column("updated_at", DateTime(timezone=True), nullable=False),
    PrimaryKeyConstraint("user_id", "project_id", "id"),
    Index("conversations_user_id_updated_at", "user_id", "updated_at"),
    Index("conversations_updated_at", "updated_at"),
)

# no foreign key to the tools: counting must not wait for deletions
tool_usage = Table(
    "tool_usage",
    metadata,
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    _not_null("tool_id", Text),
    _not_null("discovered", BigInteger, "0"),
    _not_null("called", BigInteger, "0"),
    _not_null("succeeded", BigInteger, "0"),
    _not_null("failed", BigInteger, "0"),
    _not_null("irrelevant", BigInteger, "0"),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    PrimaryKeyConstraint("user_id", "tool_id"),
)

# the primary key makes repeated feedback count once
tool_feedback = Table(
    "tool_feedback",
    metadata,
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    _not_null("discovery_id", Text),
    _not_null("tool_id", Text),
    _not_null("outcome", Text),
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
    _not_null("discoveries", BigInteger),
    _not_null("degraded", BigInteger),
    _not_null("no_match", BigInteger),
    _not_null("cache_hits", BigInteger),
    _not_null("tokens_all", BigInteger),
    _not_null("tokens_selected", BigInteger),
    _not_null("not_english", BigInteger, "0"),
    # number of discoveries in each bucket of usage/histogram.py
    _not_null("latencies", ARRAY(Integer)),
    PrimaryKeyConstraint("user_id", "at"),
    Index("discovery_stats_at", "at"),
)

# only for users who have enabled the selection log; the id is the discovery id
selections = Table(
    "selections",
    metadata,
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    _not_null("id", Text),
    Column("at", DateTime(timezone=True), nullable=False),
    _not_null("message", Text),
    _not_null("tools", JSONB),
    _not_null("strategy", Text),
    Column("degraded_reason", Text),
    _not_null("no_match", Boolean),
    PrimaryKeyConstraint("user_id", "id"),
    Index("selections_at", "user_id", "at", "id"),
    Index("selections_of_all", "at", "id"),
)

# what each search looked at and chose, without its message; the id is the discovery id
decisions = Table(
    "decisions",
    metadata,
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    _not_null("id", Text),
    Column("at", DateTime(timezone=True), nullable=False),
    Column("request_id", Text),
    _not_null("actor", Text),
    _not_null("interface", Text),
    Column("project_id", Text),
    Column("strategy", Text),
    Column("degraded_reason", Text),
    _not_null("confidence", Text),
    _not_null("no_match", Boolean),
    Column("no_match_reason", Text),
    _not_null("searched", Integer),
    Column("omitted", JSONB),
    _not_null("tools", JSONB),
    _not_null("duration_ms", Float),
    PrimaryKeyConstraint("user_id", "id"),
    Index("decisions_at", "user_id", "at", "id"),
    Index("decisions_of_all", "at", "id"),
    # an administrator looks for the request that a log line or a problem names
    Index("decisions_request", "request_id"),
)

# messages that a tool is an answer to, see usage/examples.py
tool_examples = Table(
    "tool_examples",
    metadata,
    _not_null("user_id", Text),
    _not_null("model", Text),
    _not_null("tool_id", Text),
    _not_null("id", Text),
    _not_null("vector", HALFVEC),
    # below zero: the tool was irrelevant
    _not_null("weight", REAL),
    # `use`: a message that somebody sent; `person`: one that a person wrote down for the tool
    _not_null("source", Text),
    # null for a use, of which nothing but the vector is kept
    Column("text", Text),
    Column("used_on", Date, nullable=False, server_default=text("CURRENT_DATE")),
    _created_at(),
    PrimaryKeyConstraint("user_id", "model", "tool_id", "id"),
    ForeignKeyConstraint(["user_id", "tool_id"], ["mcp_tools.user_id", "mcp_tools.id"], ondelete="CASCADE"),
    Index("tool_examples_tool", "user_id", "tool_id"),
)

# the vectors of recent messages, from which examples are learnt once outcomes are known; the id is the discovery id
discovery_vectors = Table(
    "discovery_vectors",
    metadata,
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    _not_null("id", Text),
    Column("at", DateTime(timezone=True), nullable=False),
    _not_null("model", Text),
    _not_null("vector", HALFVEC),
    # the tools of the answer
    _not_null("tools", ARRAY(Text)),
    # what has been learnt from it: each outcome of a tool counts once
    _not_null("learned", ARRAY(Text), "'{}'"),
    PrimaryKeyConstraint("user_id", "id"),
    Index("discovery_vectors_at", "user_id", "at"),
    Index("discovery_vectors_of_all", "at"),
)
