"""The icons of a tool and how it is executed, and what the hash of its definition covers.

The rows of older versions keep version 1: their hashes do not cover these fields, which are stored, and count as
unchanged, at the next listing of their server.
"""

from alembic import op

revision = "2026_11_18_icons"
down_revision = "2026_11_18_user_groups"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        ALTER TABLE mcp_tools ADD COLUMN icons json, ADD COLUMN execution json,
            ADD COLUMN hash_version smallint NOT NULL DEFAULT 1
    """)


def downgrade() -> None:
    op.execute("ALTER TABLE mcp_tools DROP COLUMN icons, DROP COLUMN execution, DROP COLUMN hash_version")
