"""Categories: groups of a user's tools, made from their vectors in the background.

The category of a tool is in a narrow table of its own: the search rows have vectors and indexes, which a new category
must not rewrite. It has no foreign key to the tools, since checking it would lock, and so rewrite, each of their rows.
"""

from alembic import op

from migrations.statements import execute_each

revision = "2026_11_18_categories"
down_revision = "2026_11_18_conversations"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE users ADD COLUMN categories_version bigint NOT NULL DEFAULT 0;
CREATE INDEX users_without_categories ON users (id) WHERE categories_version <> catalog_version;
CREATE TABLE tool_clusterings (
    user_id text NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    model text NOT NULL,
    mean halfvec NOT NULL,
    changed integer NOT NULL DEFAULT 0,
    revision bigint NOT NULL DEFAULT 1,
    made_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_id)
);
CREATE INDEX tool_clusterings_model ON tool_clusterings (model, user_id);
CREATE TABLE tool_categories (
    user_id text NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    id text NOT NULL,
    name text NOT NULL,
    own_name text,
    words text[] NOT NULL DEFAULT '{}',
    terms jsonb NOT NULL DEFAULT '{}',
    centroid halfvec,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_id, id)
);
CREATE TABLE tool_category_members (
    user_id text NOT NULL,
    tool_id text NOT NULL,
    category_id text NOT NULL,
    content bigint NOT NULL,
    PRIMARY KEY (user_id, tool_id),
    FOREIGN KEY (user_id, category_id) REFERENCES tool_categories (user_id, id) ON DELETE CASCADE
);
CREATE INDEX tool_category_members_category ON tool_category_members (user_id, category_id);
"""

TABLES = ("tool_clusterings", "tool_categories", "tool_category_members")
OWN = "user_id = (SELECT current_setting('app.user_id', true))"
IN_SYSTEM_SCOPE = "(SELECT current_setting('app.scope', true)) = 'system'"


def upgrade() -> None:
    execute_each(UPGRADE)
    for table in TABLES:
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO toolscout_app")
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY tenant ON {table} TO toolscout_app USING ({OWN} OR {IN_SYSTEM_SCOPE})")


def downgrade() -> None:
    for table in reversed(TABLES):
        op.execute(f"DROP TABLE {table}")
    op.execute("DROP INDEX users_without_categories")
    op.execute("ALTER TABLE users DROP COLUMN categories_version")
