"""The kind of action of each tool, from its verb, so that a request to read does not match a tool that deletes.

It is unknown until the tool's next index run; the new enrichment version makes every tool part of one."""

from alembic import op

revision = "2026_11_17_actions"
down_revision = "2026_11_17_selections"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE mcp_tool_embeddings ADD COLUMN action smallint NOT NULL DEFAULT 0")


def downgrade() -> None:
    op.execute("ALTER TABLE mcp_tool_embeddings DROP COLUMN action")
