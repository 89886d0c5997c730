"""The selection log: messages and selected tools, for users who have enabled it."""

from alembic import op

from migrations.statements import execute_each

revision = "2026_11_17_selections"
down_revision = "2026_11_17_calibration"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE selections (
    user_id text NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    id text NOT NULL,
    at timestamptz NOT NULL,
    message text NOT NULL,
    tools jsonb NOT NULL,
    strategy text NOT NULL,
    degraded_reason text,
    no_match boolean NOT NULL,
    PRIMARY KEY (user_id, id)
);
CREATE INDEX selections_at ON selections (user_id, at, id);
CREATE INDEX selections_of_all ON selections (at, id);
GRANT SELECT, INSERT, DELETE ON selections TO toolscout_app;
"""

OWN = "user_id = (SELECT current_setting('app.user_id', true))"
IN_SYSTEM_SCOPE = "(SELECT current_setting('app.scope', true)) = 'system'"


def upgrade() -> None:
    execute_each(UPGRADE)
    op.execute("ALTER TABLE selections ENABLE ROW LEVEL SECURITY")
    op.execute(f"CREATE POLICY tenant ON selections TO toolscout_app USING ({OWN} OR {IN_SYSTEM_SCOPE})")


def downgrade() -> None:
    op.execute("DROP TABLE selections")
