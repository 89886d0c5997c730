"""The search terms of the words of categories: a project is shown only words that its own tools have."""

from alembic import op

revision = "2026_11_18_category_terms"
down_revision = "2026_11_18_categories"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE tool_categories ADD COLUMN terms jsonb NOT NULL DEFAULT '{}'")


def downgrade() -> None:
    op.execute("ALTER TABLE tool_categories DROP COLUMN terms")
