"""Examples of what each tool is used for, and the vectors of recent messages that they are learnt from."""

from alembic import op

from migrations.statements import execute_each

revision = "2026_11_18_examples"
down_revision = "2026_11_18_cloud"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE tool_examples (
    user_id text NOT NULL,
    model text NOT NULL,
    tool_id text NOT NULL,
    id text NOT NULL,
    vector halfvec NOT NULL,
    weight real NOT NULL,
    source text NOT NULL,
    text text,
    used_on date NOT NULL DEFAULT CURRENT_DATE,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_id, model, tool_id, id),
    FOREIGN KEY (user_id, tool_id) REFERENCES mcp_tools (user_id, id) ON DELETE CASCADE,
    -- of a message that somebody sent, nothing but its vector is kept
    CONSTRAINT tool_examples_text CHECK (source <> 'use' OR text IS NULL)
);
ALTER TABLE tool_examples ALTER COLUMN vector SET STORAGE PLAIN;
CREATE INDEX tool_examples_tool ON tool_examples (user_id, tool_id);
CREATE TABLE discovery_vectors (
    user_id text NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    id text NOT NULL,
    at timestamptz NOT NULL,
    model text NOT NULL,
    vector halfvec NOT NULL,
    tools text[] NOT NULL,
    learned text[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (user_id, id)
);
ALTER TABLE discovery_vectors ALTER COLUMN vector SET STORAGE PLAIN;
CREATE INDEX discovery_vectors_at ON discovery_vectors (user_id, at);
CREATE INDEX discovery_vectors_of_all ON discovery_vectors (at);
"""

TABLES = ("tool_examples", "discovery_vectors")
OWN = "user_id = (SELECT current_setting('app.user_id', true))"
IN_SYSTEM_SCOPE = "(SELECT current_setting('app.scope', true)) = 'system'"


def upgrade() -> None:
    execute_each(UPGRADE)
    for table in TABLES:
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO toolscout_app")
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY tenant ON {table} TO toolscout_app USING ({OWN} OR {IN_SYSTEM_SCOPE})")


def downgrade() -> None:
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
