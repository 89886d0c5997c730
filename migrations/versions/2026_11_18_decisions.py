"""The decision log of all searches, and the users for whom an administrator has switched the search on or off."""

from alembic import op

from migrations.statements import execute_each

revision = "2026_11_18_decisions"
down_revision = "2026_11_18_adaptive_cut"

UPGRADE = """
-- Old processes go on to read and write discovery_enabled. False was always somebody's choice; true was the default.
-- First, as it takes the stronger lock: one that grows within a transaction ends in a deadlock with those processes.
ALTER TABLE users ADD COLUMN discovery_pinned boolean NOT NULL DEFAULT false;
CREATE TABLE decisions (
    user_id text NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    id text NOT NULL,
    at timestamptz NOT NULL,
    request_id text,
    actor text NOT NULL,
    interface text NOT NULL,
    project_id text,
    strategy text,
    degraded_reason text,
    confidence text NOT NULL,
    no_match boolean NOT NULL,
    no_match_reason text,
    searched integer NOT NULL,
    omitted jsonb,
    tools jsonb NOT NULL,
    duration_ms double precision NOT NULL,
    PRIMARY KEY (user_id, id)
);
CREATE INDEX decisions_at ON decisions (user_id, at, id);
CREATE INDEX decisions_of_all ON decisions (at, id);
CREATE INDEX decisions_request ON decisions (request_id);
GRANT SELECT, INSERT, DELETE ON decisions TO toolscout_app;
ALTER TABLE decisions ENABLE ROW LEVEL SECURITY;
"""

OWN = "user_id = (SELECT current_setting('app.user_id', true))"
IN_SYSTEM_SCOPE = "(SELECT current_setting('app.scope', true)) = 'system'"


def upgrade() -> None:
    execute_each(UPGRADE)
    op.execute(f"CREATE POLICY tenant ON decisions TO toolscout_app USING ({OWN} OR {IN_SYSTEM_SCOPE})")


def downgrade() -> None:
    op.execute("ALTER TABLE users DROP COLUMN discovery_pinned")
    op.execute("DROP TABLE decisions")
