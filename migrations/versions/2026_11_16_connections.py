"""Server status with its cause, the requester of an index run, the audit log, idempotent tool calls."""

from alembic import op

from migrations.statements import execute_each

revision = "2026_11_16_connections"
down_revision = "2026_11_16_foundation"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE mcp_servers ADD COLUMN last_cause text;
UPDATE mcp_servers SET status = 'disconnected' WHERE status = 'new';
ALTER TABLE mcp_servers ALTER COLUMN status SET DEFAULT 'disconnected';
ALTER TABLE mcp_servers ADD CONSTRAINT mcp_servers_status CHECK (status IN ('connected', 'disconnected', 'error'));

ALTER TABLE index_runs ADD COLUMN asks boolean NOT NULL DEFAULT true;
ALTER TABLE index_runs ADD COLUMN asked_by text NOT NULL DEFAULT 'system';
ALTER TABLE index_runs ADD COLUMN started_at timestamptz;

-- no foreign key to users: audit events outlive the user
CREATE TABLE audit_events (
    user_id text NOT NULL,
    id text NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL,
    action text NOT NULL,
    target text,
    outcome text NOT NULL,
    duration_ms double precision,
    request_id text,
    PRIMARY KEY (user_id, id)
);
CREATE INDEX audit_events_at ON audit_events (user_id, at, id);
CREATE INDEX audit_events_of_all ON audit_events (at, id);
GRANT SELECT, INSERT ON audit_events TO toolscout_app;

CREATE TABLE tool_calls (
    user_id text NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    key text NOT NULL,
    request bytea NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    given_up_at timestamptz NOT NULL,
    answer bytea,
    PRIMARY KEY (user_id, key)
);
CREATE INDEX tool_calls_started_at ON tool_calls (started_at);
GRANT SELECT, INSERT, UPDATE, DELETE ON tool_calls TO toolscout_app;
"""

DOWNGRADE = """
DROP TABLE tool_calls;
DROP TABLE audit_events;
ALTER TABLE index_runs DROP COLUMN started_at;
ALTER TABLE index_runs DROP COLUMN asked_by;
ALTER TABLE index_runs DROP COLUMN asks;
ALTER TABLE mcp_servers DROP CONSTRAINT mcp_servers_status;
ALTER TABLE mcp_servers ALTER COLUMN status SET DEFAULT 'new';
UPDATE mcp_servers SET status = 'new' WHERE status = 'disconnected';
ALTER TABLE mcp_servers DROP COLUMN last_cause;
"""

OWN = "user_id = (SELECT current_setting('app.user_id', true))"
IN_SYSTEM_SCOPE = "(SELECT current_setting('app.scope', true)) = 'system'"


def upgrade() -> None:
    execute_each(UPGRADE)
    for table in ("audit_events", "tool_calls"):
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY tenant ON {table} TO toolscout_app USING ({OWN} OR {IN_SYSTEM_SCOPE})")


def downgrade() -> None:
    execute_each(DOWNGRADE)
