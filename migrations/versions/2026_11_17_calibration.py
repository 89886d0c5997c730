"""Replace the threshold of a model by its calibration, which also decides whether any tool matches."""

from alembic import op

revision = "2026_11_17_calibration"
down_revision = "2026_11_17_usage"


def upgrade() -> None:
    op.execute("ALTER TABLE embedding_models ADD COLUMN calibration jsonb, DROP COLUMN threshold")


def downgrade() -> None:
    op.execute(
        """
        ALTER TABLE embedding_models ADD COLUMN threshold double precision NOT NULL DEFAULT 0.3, DROP COLUMN calibration
        """
    )
