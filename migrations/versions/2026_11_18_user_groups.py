"""The groups of users, as their identity provider names them."""

from alembic import op

revision = "2026_11_18_user_groups"
down_revision = "2026_11_18_large_tenants"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE users ADD COLUMN groups text[] NOT NULL DEFAULT '{}'")


def downgrade() -> None:
    op.execute("ALTER TABLE users DROP COLUMN groups")
