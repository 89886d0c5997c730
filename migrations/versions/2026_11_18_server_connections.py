"""Sign-in to users' servers: the accounts, and the sign-ins that have begun."""

from alembic import op

from migrations.statements import execute_each

revision = "2026_11_18_server_connections"
down_revision = "2026_11_18_own_texts"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE server_connections (
    user_id text NOT NULL,
    server_id text NOT NULL,
    sealed_context bytea,
    sealed_tokens bytea,
    issuer text,
    resource text,
    scope text,
    required_scope text,
    expires_at timestamptz,
    version integer NOT NULL DEFAULT 1,
    refreshed_at timestamptz NOT NULL DEFAULT now(),
    lease_until timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_id, server_id),
    FOREIGN KEY (user_id, server_id) REFERENCES mcp_servers (user_id, id) ON DELETE CASCADE
);
CREATE TABLE authorization_requests (
    user_id text NOT NULL,
    id text NOT NULL,
    server_id text NOT NULL,
    sealed bytea NOT NULL,
    redirect_url text,
    browser bytea,
    actor text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (user_id, id),
    FOREIGN KEY (user_id, server_id) REFERENCES mcp_servers (user_id, id) ON DELETE CASCADE
);
CREATE INDEX authorization_requests_expires_at ON authorization_requests (expires_at);
-- for a later version: this one still stores `error`, which processes of the previous version can read
ALTER TABLE mcp_servers DROP CONSTRAINT mcp_servers_status;
ALTER TABLE mcp_servers ADD CONSTRAINT mcp_servers_status
    CHECK (status IN ('connected', 'disconnected', 'error', 'needs_authorization'));
ALTER TABLE mcp_servers ADD COLUMN signed_in boolean NOT NULL DEFAULT false;
"""

TABLES = ("server_connections", "authorization_requests")
OWN = "user_id = (SELECT current_setting('app.user_id', true))"
IN_SYSTEM_SCOPE = "(SELECT current_setting('app.scope', true)) = 'system'"


def upgrade() -> None:
    execute_each(UPGRADE)
    for table in TABLES:
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO toolscout_app")
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY tenant ON {table} TO toolscout_app USING ({OWN} OR {IN_SYSTEM_SCOPE})")


def downgrade() -> None:
    op.execute("ALTER TABLE mcp_servers DROP CONSTRAINT mcp_servers_status")
    op.execute("UPDATE mcp_servers SET status = 'error' WHERE status = 'needs_authorization'")
    op.execute(
        "ALTER TABLE mcp_servers ADD CONSTRAINT mcp_servers_status "
        "CHECK (status IN ('connected', 'disconnected', 'error'))"
    )
    op.execute("ALTER TABLE mcp_servers DROP COLUMN signed_in")
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
