"""What a tool does, by its verb: a message that wants to look is not to find what removes. Unknown until the tool's
next run, which the raised enrichment version makes everybody's."""

from alembic import op

revision = "2026_11_17_actions"
down_revision = "2026_11_17_selections"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE mcp_tool_embeddings ADD COLUMN action smallint NOT NULL DEFAULT 0")


def downgrade() -> None:
    op.execute("ALTER TABLE mcp_tool_embeddings DROP COLUMN action")
