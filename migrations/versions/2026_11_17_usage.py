"""Usage of discovered tools: counters per tool, feedback, and discovery statistics per minute."""

from alembic import op

from migrations.statements import execute_each

revision = "2026_11_17_usage"
down_revision = "2026_11_16_rules"
branch_labels = None
depends_on = None

UPGRADE = """
-- no foreign key to mcp_tools: counting must not wait for deletions; counters of deleted tools are removed later
CREATE TABLE tool_usage (
    user_id text NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    tool_id text NOT NULL,
    discovered bigint NOT NULL DEFAULT 0,
    called bigint NOT NULL DEFAULT 0,
    succeeded bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    irrelevant bigint NOT NULL DEFAULT 0,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_id, tool_id)
);
GRANT SELECT, INSERT, UPDATE, DELETE ON tool_usage TO toolscout_app;

CREATE TABLE tool_feedback (
    user_id text NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    discovery_id text NOT NULL,
    tool_id text NOT NULL,
    outcome text NOT NULL CHECK (outcome IN ('called', 'succeeded', 'failed', 'irrelevant')),
    at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_id, discovery_id, tool_id, outcome)
);
CREATE INDEX tool_feedback_at ON tool_feedback (at);
GRANT SELECT, INSERT, DELETE ON tool_feedback TO toolscout_app;

CREATE TABLE discovery_stats (
    user_id text NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    at timestamptz NOT NULL,
    discoveries bigint NOT NULL,
    degraded bigint NOT NULL,
    no_match bigint NOT NULL,
    cache_hits bigint NOT NULL,
    tokens_all bigint NOT NULL,
    tokens_selected bigint NOT NULL,
    latencies integer[] NOT NULL,
    PRIMARY KEY (user_id, at)
);
CREATE INDEX discovery_stats_at ON discovery_stats (at);
GRANT SELECT, INSERT, UPDATE, DELETE ON discovery_stats TO toolscout_app;

ALTER TABLE mcp_tool_embeddings ADD COLUMN prior real NOT NULL DEFAULT 0;
"""

DOWNGRADE = """
ALTER TABLE mcp_tool_embeddings DROP COLUMN prior;
DROP TABLE discovery_stats;
DROP TABLE tool_feedback;
DROP TABLE tool_usage;
"""

OWN = "user_id = (SELECT current_setting('app.user_id', true))"
IN_SYSTEM_SCOPE = "(SELECT current_setting('app.scope', true)) = 'system'"


def upgrade() -> None:
    execute_each(UPGRADE)
    for table in ("tool_usage", "tool_feedback", "discovery_stats"):
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY tenant ON {table} TO toolscout_app USING ({OWN} OR {IN_SYSTEM_SCOPE})")


def downgrade() -> None:
    execute_each(DOWNGRADE)
