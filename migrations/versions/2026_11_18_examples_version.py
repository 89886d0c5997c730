"""A version of what is learnt from a user's outcomes, so that searches in memory read it again when it changes."""

from alembic import op

from migrations.statements import execute_each

revision = "2026_11_18_examples_version"
down_revision = "2026_11_18_examples"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE users ADD COLUMN examples_version bigint NOT NULL DEFAULT 0;
UPDATE users SET examples_version = nextval('catalog_versions') WHERE id IN (
    SELECT user_id FROM tool_examples UNION SELECT user_id FROM mcp_tool_embeddings WHERE prior <> 0
);
"""


def upgrade() -> None:
    execute_each(UPGRADE)


def downgrade() -> None:
    op.execute("ALTER TABLE users DROP COLUMN examples_version")
