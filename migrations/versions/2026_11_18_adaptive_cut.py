"""Let a user's outcomes and own calibration move the cut of no match, and count messages that are not English."""

from migrations.statements import execute_each

revision = "2026_11_18_adaptive_cut"
down_revision = "2026_11_17_actions"


def upgrade() -> None:
    execute_each(
        """
        ALTER TABLE users ADD COLUMN calibration jsonb, ADD COLUMN adaptation jsonb NOT NULL DEFAULT '{}';
        ALTER TABLE discovery_stats ADD COLUMN not_english bigint NOT NULL DEFAULT 0;
        """
    )


def downgrade() -> None:
    execute_each(
        """
        ALTER TABLE discovery_stats DROP COLUMN not_english;
        ALTER TABLE users DROP COLUMN adaptation, DROP COLUMN calibration;
        """
    )
