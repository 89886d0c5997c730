"""Which tools a conversation has, so that a chat backend need not send them."""

from alembic import op

from migrations.statements import execute_each

revision = "2026_11_18_conversations"
down_revision = "2026_11_18_shared_servers"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE conversations (
    user_id text NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    project_id text NOT NULL,
    id text NOT NULL,
    revision text NOT NULL,
    turn integer NOT NULL,
    spans jsonb NOT NULL,
    calls jsonb NOT NULL,
    oldest_turn integer NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (user_id, project_id, id)
);
CREATE INDEX conversations_user_id_updated_at ON conversations (user_id, updated_at);
CREATE INDEX conversations_updated_at ON conversations (updated_at);
GRANT SELECT, INSERT, UPDATE, DELETE ON conversations TO toolscout_app;
ALTER TABLE conversations ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON conversations TO toolscout_app USING (
    user_id = (SELECT current_setting('app.user_id', true)) OR (SELECT current_setting('app.scope', true)) = 'system'
);
"""


def upgrade() -> None:
    execute_each(UPGRADE)


def downgrade() -> None:
    op.execute("DROP TABLE conversations")
