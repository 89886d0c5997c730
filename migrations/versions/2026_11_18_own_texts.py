"""Texts that a user writes for a tool, beside its server's.

Rows of before have none, and processes of before do not read them: these show and index the server's texts.
"""

from alembic import op

from migrations.statements import execute_each

revision = "2026_11_18_own_texts"
down_revision = "2026_11_18_icons"
branch_labels = None
depends_on = None

COLUMNS = """
ALTER TABLE mcp_tools
    ADD COLUMN own_title text,
    ADD COLUMN own_description text,
    ADD COLUMN own_annotations json,
    ADD COLUMN own_texts_based_on text,
    ADD COLUMN own_texts_at timestamptz;
CREATE INDEX mcp_tools_own_texts ON mcp_tools (user_id, server_id) WHERE own_texts_based_on IS NOT NULL;
"""


def upgrade() -> None:
    execute_each(COLUMNS)


def downgrade() -> None:
    op.execute("DROP INDEX mcp_tools_own_texts")
    for column in ("title", "description", "annotations", "texts_based_on", "texts_at"):
        op.execute(f"ALTER TABLE mcp_tools DROP COLUMN own_{column}")
