"""Lists of tools that are public, shared by all users of a URL, and when a server asks to be listed again.

`public_listings` belongs to no user: its key is a hash of transport and URL. Only system transactions see it.
"""

from alembic import op

from migrations.statements import execute_each

revision = "2026_11_18_public_listings"
down_revision = "2026_11_18_new_tools"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE public_listings (
    key bytea PRIMARY KEY,
    tools bytea,
    size integer NOT NULL DEFAULT 0,
    fetched_at timestamptz,
    expires_at timestamptz NOT NULL DEFAULT now(),
    changed_at timestamptz,
    lease_token text,
    lease_until timestamptz
);
CREATE INDEX public_listings_expires_at ON public_listings (expires_at);
GRANT SELECT, INSERT, UPDATE, DELETE ON public_listings TO toolscout_app;
ALTER TABLE public_listings ENABLE ROW LEVEL SECURITY;
CREATE POLICY system ON public_listings TO toolscout_app
    USING ((SELECT current_setting('app.scope', true)) = 'system');
ALTER TABLE mcp_servers ADD COLUMN list_again_at timestamptz;
"""


def upgrade() -> None:
    execute_each(UPGRADE)


def downgrade() -> None:
    op.execute("ALTER TABLE mcp_servers DROP COLUMN list_again_at")
    op.execute("DROP TABLE public_listings")
