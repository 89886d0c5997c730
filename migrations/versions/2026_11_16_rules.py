"""Visibility: rules, projects, tool switches, changed definitions and findings in them."""

from alembic import op

from migrations.statements import execute_each

revision = "2026_11_16_rules"
down_revision = "2026_11_16_connections"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE policy (
    id boolean PRIMARY KEY DEFAULT true CHECK (id),
    hold_changed boolean NOT NULL DEFAULT false,
    find_failing boolean NOT NULL DEFAULT true
);
INSERT INTO policy DEFAULT VALUES;
GRANT SELECT, UPDATE ON policy TO toolscout_app;

CREATE TABLE projects (
    user_id text NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    id text NOT NULL,
    name text NOT NULL,
    server_ids text[],
    optimization text CHECK (optimization IN ('bm25', 'semantic', 'hybrid')),
    read_only boolean NOT NULL DEFAULT false,
    "limit" integer,
    similarity_threshold double precision,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_id, id),
    CONSTRAINT projects_name UNIQUE (user_id, name)
);

CREATE TABLE tool_rules (
    user_id text NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    project_id text NOT NULL,
    position integer NOT NULL,
    patterns text[] NOT NULL,
    server text,
    enabled boolean,
    tags text[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (user_id, project_id, position)
);

ALTER TABLE api_keys ADD COLUMN project_id text;
ALTER TABLE api_keys ADD FOREIGN KEY (user_id, project_id) REFERENCES projects (user_id, id) ON DELETE CASCADE;

ALTER TABLE mcp_servers ADD COLUMN tool_permissions jsonb NOT NULL DEFAULT '{}';

ALTER TABLE mcp_tools ADD COLUMN switched boolean;
ALTER TABLE mcp_tools ADD COLUMN hidden_by text;
ALTER TABLE mcp_tools ADD COLUMN findings jsonb NOT NULL DEFAULT '[]';
ALTER TABLE mcp_tools ADD COLUMN approved_hash text;
ALTER TABLE mcp_tools ADD COLUMN vanished_at timestamptz;
UPDATE mcp_tools SET switched = enabled WHERE enabled_by = 'user';
UPDATE mcp_tools t SET approved_hash = definition_hash,
    hidden_by = CASE WHEN NOT s.enabled THEN 'server' WHEN NOT t.enabled THEN 'user' END
FROM mcp_servers s WHERE s.user_id = t.user_id AND s.id = t.server_id;
ALTER TABLE mcp_tools ALTER COLUMN approved_hash SET NOT NULL;
CREATE INDEX mcp_tools_in_question ON mcp_tools (user_id, server_id)
    WHERE state = 'changed' OR hidden_by IN ('changed', 'status');

ALTER TABLE mcp_tool_embeddings ADD COLUMN projects bigint[] NOT NULL DEFAULT '{}';
ALTER TABLE mcp_tool_embeddings ADD COLUMN project_tags jsonb NOT NULL DEFAULT '{}';

CREATE TABLE tool_changes (
    user_id text NOT NULL,
    id text NOT NULL,
    server_id text NOT NULL,
    tool_id text NOT NULL,
    run_id text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    fields text[] NOT NULL,
    old json NOT NULL,
    new json NOT NULL,
    PRIMARY KEY (user_id, id),
    FOREIGN KEY (user_id, tool_id) REFERENCES mcp_tools (user_id, id) ON DELETE CASCADE
);
CREATE INDEX tool_changes_at ON tool_changes (user_id, tool_id, at, id);

GRANT SELECT, INSERT, UPDATE, DELETE ON projects, tool_rules, tool_changes TO toolscout_app;

-- sanitize the stored tools of each server once, as every listing is from now on
INSERT INTO index_runs (user_id, id, server_id, asks)
SELECT user_id, gen_random_uuid()::text, id, false FROM mcp_servers WHERE tool_count > 0 ON CONFLICT DO NOTHING;
"""

DOWNGRADE = """
DROP TABLE tool_changes;
ALTER TABLE mcp_tool_embeddings DROP COLUMN project_tags;
ALTER TABLE mcp_tool_embeddings DROP COLUMN projects;
DELETE FROM mcp_tools WHERE vanished_at IS NOT NULL;
-- hidden tools stay hidden, although the older version knows only one reason
UPDATE mcp_tools SET enabled = hidden_by IS NULL OR hidden_by = 'server' AND coalesce(switched, true);
UPDATE mcp_tools SET enabled_by = CASE WHEN enabled AND switched IS NULL THEN 'default' ELSE 'user' END;
DROP INDEX mcp_tools_in_question;
ALTER TABLE mcp_tools DROP COLUMN vanished_at;
ALTER TABLE mcp_tools DROP COLUMN approved_hash;
ALTER TABLE mcp_tools DROP COLUMN findings;
ALTER TABLE mcp_tools DROP COLUMN hidden_by;
ALTER TABLE mcp_tools DROP COLUMN switched;
ALTER TABLE mcp_servers DROP COLUMN tool_permissions;
DELETE FROM api_keys WHERE project_id IS NOT NULL;
ALTER TABLE api_keys DROP COLUMN project_id;
DROP TABLE tool_rules;
DROP TABLE projects;
DROP TABLE policy;
"""

OWN = "user_id = (SELECT current_setting('app.user_id', true))"
IN_SYSTEM_SCOPE = "(SELECT current_setting('app.scope', true)) = 'system'"


# A connection without a user has the empty id, which also marks audit events that belong to no user.
OWN_AND_NOT_EMPTY = f"({OWN} AND user_id <> '')"


def upgrade() -> None:
    execute_each(UPGRADE)
    op.execute(f"ALTER POLICY tenant ON audit_events TO toolscout_app USING ({OWN_AND_NOT_EMPTY} OR {IN_SYSTEM_SCOPE})")
    for table in ("projects", "tool_rules", "tool_changes"):
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY tenant ON {table} TO toolscout_app USING ({OWN} OR {IN_SYSTEM_SCOPE})")


def downgrade() -> None:
    op.execute(f"ALTER POLICY tenant ON audit_events TO toolscout_app USING ({OWN} OR {IN_SYSTEM_SCOPE})")
    execute_each(DOWNGRADE)
