"""Shared servers: registered once by an administrator and copied to each member.

A shared server is a server of the reserved owner `*`. Its row in `shared_servers` says who may use it. Each member has
a copy in `mcp_servers`, which names the source in `shared_id`. `task_leases` keeps replicas from doing the same
background work at once.
"""

from alembic import op

from migrations.statements import execute_each

revision = "2026_11_18_shared_servers"
down_revision = "2026_11_18_confirmations"
branch_labels = None
depends_on = None

TABLES = """
ALTER TABLE mcp_servers ADD COLUMN shared_id text;
ALTER TABLE mcp_servers ADD COLUMN shared_version bigint;
ALTER TABLE mcp_servers ADD COLUMN shared_credentials text;
CREATE INDEX mcp_servers_shared ON mcp_servers (shared_id, user_id) WHERE shared_id IS NOT NULL;

CREATE TABLE shared_servers (
    user_id text NOT NULL,
    server_id text NOT NULL,
    everyone boolean NOT NULL DEFAULT false,
    groups text[] NOT NULL DEFAULT '{}',
    user_ids text[] NOT NULL DEFAULT '{}',
    credentials text NOT NULL DEFAULT 'member',
    version bigint NOT NULL DEFAULT 1,
    PRIMARY KEY (user_id, server_id),
    FOREIGN KEY (user_id, server_id) REFERENCES mcp_servers (user_id, id) ON DELETE CASCADE
);

CREATE TABLE task_leases (
    name text PRIMARY KEY,
    holder text NOT NULL,
    lease_until timestamptz NOT NULL
);
"""

OWN = "user_id = (SELECT current_setting('app.user_id', true))"
IN_SYSTEM_SCOPE = "(SELECT current_setting('app.scope', true)) = 'system'"


def upgrade() -> None:
    execute_each(TABLES)
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON shared_servers, task_leases TO toolscout_app")
    op.execute("ALTER TABLE shared_servers ENABLE ROW LEVEL SECURITY")
    op.execute(f"CREATE POLICY tenant ON shared_servers TO toolscout_app USING ({OWN} OR {IN_SYSTEM_SCOPE})")


def downgrade() -> None:
    # without these columns the copies and the sources would look like ordinary servers
    op.execute("DELETE FROM mcp_servers WHERE shared_id IS NOT NULL")
    op.execute("DELETE FROM users WHERE id = '*'")
    op.execute("DROP TABLE task_leases")
    op.execute("DROP TABLE shared_servers")
    op.execute("DROP INDEX mcp_servers_shared")
    op.execute(
        "ALTER TABLE mcp_servers DROP COLUMN shared_id, DROP COLUMN shared_version, DROP COLUMN shared_credentials"
    )
