"""Calls of destructive tools that wait for a confirmation."""

from alembic import op

from migrations.statements import execute_each

revision = "2026_11_18_confirmations"
down_revision = "2026_11_18_public_listings"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE call_confirmations (
    user_id text NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    token_hash bytea NOT NULL,
    call bytea NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (user_id, token_hash)
);
CREATE INDEX call_confirmations_expires_at ON call_confirmations (expires_at);
GRANT SELECT, INSERT, DELETE ON call_confirmations TO toolscout_app;
ALTER TABLE call_confirmations ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON call_confirmations TO toolscout_app USING (
    user_id = (SELECT current_setting('app.user_id', true)) OR (SELECT current_setting('app.scope', true)) = 'system'
);
"""


def upgrade() -> None:
    execute_each(UPGRADE)


def downgrade() -> None:
    op.execute("DROP TABLE call_confirmations")
