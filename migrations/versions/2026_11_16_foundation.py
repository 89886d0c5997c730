"""Users, keys, servers, tools, vectors and index runs; the app role and row-level security."""

from alembic import op

from migrations.statements import execute_each

revision = "2026_11_16_foundation"
down_revision = None
branch_labels = None
depends_on = None

TABLES = """
-- shared by all users, so that a version is never reused, not even by a user who is deleted and created again
CREATE SEQUENCE catalog_versions;

CREATE TABLE users (
    id text PRIMARY KEY CHECK (id <> ''),
    name text,
    settings jsonb NOT NULL DEFAULT '{}',
    discovery_enabled boolean NOT NULL DEFAULT true,
    catalog_version bigint NOT NULL DEFAULT nextval('catalog_versions'),
    tool_count integer NOT NULL DEFAULT 0,
    ann boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE api_keys (
    id text PRIMARY KEY,
    kind text NOT NULL CHECK (kind IN ('user', 'service', 'admin')),
    name text,
    prefix text NOT NULL,
    key_hash bytea NOT NULL UNIQUE,
    user_id text REFERENCES users (id) ON DELETE CASCADE,
    expires_at timestamptz,
    last_used_at timestamptz,
    revoked_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    CHECK ((kind = 'user') = (user_id IS NOT NULL))
);
CREATE INDEX api_keys_user_id ON api_keys (user_id);

CREATE TABLE mcp_servers (
    user_id text NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    id text NOT NULL,
    name text NOT NULL,
    description text NOT NULL DEFAULT '',
    transport text NOT NULL CHECK (transport IN ('streamable_http', 'sse', 'stdio', 'push')),
    url text,
    sealed_headers bytea,
    header_names text[] NOT NULL DEFAULT '{}',
    tags text[] NOT NULL DEFAULT '{}',
    enabled boolean NOT NULL DEFAULT true,
    status text NOT NULL DEFAULT 'new',
    last_error text,
    config_version integer NOT NULL DEFAULT 1,
    tool_count integer NOT NULL DEFAULT 0,
    pending_count integer NOT NULL DEFAULT 0,
    pending_tries integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_id, id),
    CONSTRAINT mcp_servers_name UNIQUE (user_id, name)
);
CREATE INDEX mcp_servers_id ON mcp_servers (id);
CREATE INDEX mcp_servers_pending ON mcp_servers (user_id, id) WHERE pending_count > 0;

CREATE TABLE mcp_tools (
    user_id text NOT NULL,
    id text NOT NULL,
    server_id text NOT NULL,
    name text NOT NULL,
    title text,
    description text NOT NULL,
    input_schema json NOT NULL,
    output_schema json,
    annotations json,
    meta json,
    tags text[] NOT NULL DEFAULT '{}',
    enabled boolean NOT NULL DEFAULT true,
    enabled_by text NOT NULL DEFAULT 'default' CHECK (enabled_by IN ('default', 'rule', 'user')),
    pinned boolean NOT NULL DEFAULT false,
    state text NOT NULL DEFAULT 'approved' CHECK (state IN ('approved', 'changed')),
    definition_hash text NOT NULL,
    index_hash text NOT NULL,
    enriched_description text NOT NULL,
    tokens integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_id, id),
    CONSTRAINT mcp_tools_name UNIQUE (user_id, server_id, name),
    FOREIGN KEY (user_id, server_id) REFERENCES mcp_servers (user_id, id) ON DELETE CASCADE
);
CREATE INDEX mcp_tools_by_name ON mcp_tools (user_id, name);

-- Only what a search reads: one narrow row per tool and model, with both vectors stored inline (PLAIN).
-- With the texts in the same row a vector would go to TOAST, and a scan would cost several times as much.
CREATE TABLE mcp_tool_embeddings (
    user_id text NOT NULL,
    model text NOT NULL,
    tool_id text NOT NULL,
    server_id text NOT NULL,
    server_name text NOT NULL,
    tool_name text NOT NULL,
    embedding halfvec,
    content_hash text,
    lexical sparsevec(1000000000) NOT NULL,
    tokens integer NOT NULL,
    enabled boolean NOT NULL,
    tags text[] NOT NULL,
    ann boolean NOT NULL DEFAULT false,
    PRIMARY KEY (user_id, model, tool_id),
    FOREIGN KEY (user_id, tool_id) REFERENCES mcp_tools (user_id, id) ON DELETE CASCADE,
    CHECK ((embedding IS NULL) = (content_hash IS NULL))
);
ALTER TABLE mcp_tool_embeddings ALTER COLUMN embedding SET STORAGE PLAIN;
ALTER TABLE mcp_tool_embeddings ALTER COLUMN lexical SET STORAGE PLAIN;
CREATE INDEX mcp_tool_embeddings_tool ON mcp_tool_embeddings (user_id, tool_id);

CREATE TABLE embedding_models (
    id text PRIMARY KEY,
    provider text NOT NULL,
    name text NOT NULL,
    dimension integer NOT NULL,
    threshold double precision NOT NULL,
    active boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX embedding_models_active ON embedding_models (active) WHERE active;

CREATE TABLE embedding_cache (
    model text NOT NULL,
    text_hash bytea NOT NULL,
    embedding halfvec NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (model, text_hash)
);

-- no foreign key to users: the rows with user_id '' belong to all users
CREATE TABLE core_tools (
    user_id text NOT NULL,
    name text NOT NULL,
    id text NOT NULL,
    position integer NOT NULL,
    definition json NOT NULL,
    tokens integer NOT NULL,
    PRIMARY KEY (user_id, name)
);

CREATE TABLE index_runs (
    user_id text NOT NULL,
    id text NOT NULL,
    server_id text NOT NULL,
    state text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'running', 'succeeded', 'failed')),
    force boolean NOT NULL DEFAULT false,
    accept_empty boolean NOT NULL DEFAULT false,
    payload bytea,
    done integer NOT NULL DEFAULT 0,
    total integer NOT NULL DEFAULT 0,
    counts jsonb NOT NULL DEFAULT '{}',
    refused jsonb NOT NULL DEFAULT '[]',
    warnings jsonb NOT NULL DEFAULT '[]',
    error jsonb,
    attempts integer NOT NULL DEFAULT 0,
    lease_token bigint NOT NULL DEFAULT 0,
    lease_until timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    PRIMARY KEY (user_id, id),
    FOREIGN KEY (user_id, server_id) REFERENCES mcp_servers (user_id, id) ON DELETE CASCADE
);
CREATE INDEX index_runs_id ON index_runs (id);
CREATE INDEX index_runs_server ON index_runs (user_id, server_id, created_at);
CREATE UNIQUE INDEX index_runs_one_queued ON index_runs (user_id, server_id) WHERE state = 'queued';
CREATE UNIQUE INDEX index_runs_one_running ON index_runs (user_id, server_id) WHERE state = 'running';
CREATE INDEX index_runs_waiting ON index_runs (created_at) WHERE state IN ('queued', 'running');
"""

# Roles belong to the cluster, so another database in it may have created this one already; then a superuser must have
# granted it to this owner. The creator of a role administers it, but can use it only after granting it to itself.
ROLE = """
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'toolscout_app') THEN
        CREATE ROLE toolscout_app NOLOGIN NOSUPERUSER NOBYPASSRLS;
        GRANT toolscout_app TO CURRENT_USER;
    END IF;
END
$$;
GRANT SELECT, INSERT, UPDATE, DELETE ON
    users, api_keys, mcp_servers, mcp_tools, mcp_tool_embeddings, embedding_cache, core_tools, index_runs
TO toolscout_app;
GRANT SELECT ON embedding_models TO toolscout_app;
GRANT USAGE ON SEQUENCE catalog_versions TO toolscout_app;
"""

TENANT_COLUMN = {
    "users": "id",
    "api_keys": "user_id",
    "mcp_servers": "user_id",
    "mcp_tools": "user_id",
    "mcp_tool_embeddings": "user_id",
    "core_tools": "user_id",
    "index_runs": "user_id",
}

# The sub-select makes Postgres read the setting once per statement instead of once per row.
IN_SYSTEM_SCOPE = "(SELECT current_setting('app.scope', true)) = 'system'"
CURRENT_USER_ID = "(SELECT current_setting('app.user_id', true))"

TABLES_NEWEST_FIRST = (
    "index_runs",
    "core_tools",
    "embedding_cache",
    "embedding_models",
    "mcp_tool_embeddings",
    "mcp_tools",
    "mcp_servers",
    "api_keys",
    "users",
)


def upgrade() -> None:
    execute_each(TABLES)
    execute_each(ROLE)
    for table, column in TENANT_COLUMN.items():
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        own = f"{column} = {CURRENT_USER_ID}"
        op.execute(f"CREATE POLICY tenant ON {table} TO toolscout_app USING ({own} OR {IN_SYSTEM_SCOPE})")
    op.execute("CREATE POLICY everyones ON core_tools FOR SELECT TO toolscout_app USING (user_id = '')")


def downgrade() -> None:
    """Keep the role: other databases in the cluster may use it."""
    for table in TABLES_NEWEST_FIRST:
        op.execute(f"DROP TABLE {table}")
    op.execute("DROP SEQUENCE catalog_versions")
