"""API keys by their hash, which is what a request looks them up by.

Citus distributes them by it, and then every unique index has to include it. An id is a UUID, so its index need not be
unique.
"""

from alembic import op

revision = "2026_11_19_key_hash"
down_revision = "2026_11_18_plain_policies"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE api_keys DROP CONSTRAINT api_keys_pkey")
    op.execute("ALTER TABLE api_keys DROP CONSTRAINT api_keys_key_hash_key")
    op.execute("ALTER TABLE api_keys ADD PRIMARY KEY (key_hash)")
    op.execute("CREATE INDEX api_keys_id ON api_keys (id)")


def downgrade() -> None:
    op.execute("DROP INDEX api_keys_id")
    op.execute("ALTER TABLE api_keys DROP CONSTRAINT api_keys_pkey")
    op.execute("ALTER TABLE api_keys ADD PRIMARY KEY (id)")
    op.execute("ALTER TABLE api_keys ADD CONSTRAINT api_keys_key_hash_key UNIQUE (key_hash)")
