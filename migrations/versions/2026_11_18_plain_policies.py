"""Policies without sub-selects, which Citus refuses on distributed tables.

A setting that is read directly is read for each row, which takes 0.04 µs: 0.02 ms for the search of 500 tools.
"""

from alembic import op

revision = "2026_11_18_plain_policies"
down_revision = "2026_11_18_categories"
branch_labels = None
depends_on = None

TABLES = (
    "api_keys",
    "mcp_servers",
    "mcp_tools",
    "mcp_tool_embeddings",
    "core_tools",
    "index_runs",
    "tool_calls",
    "projects",
    "tool_rules",
    "tool_changes",
    "tool_usage",
    "tool_feedback",
    "discovery_stats",
    "selections",
    "decisions",
    "tool_examples",
    "discovery_vectors",
    "large_tenant_tools",
    "large_tenant_terms",
    "large_tenant_stats",
    "server_connections",
    "authorization_requests",
    "call_confirmations",
    "shared_servers",
    "conversations",
    "tool_clusterings",
    "tool_categories",
    "tool_category_members",
)

USER = "current_setting('app.user_id', true)"
SCOPE = "current_setting('app.scope', true)"


def upgrade() -> None:
    # each policy in a transaction of its own: all tables would be locked at once otherwise
    with op.get_context().autocommit_block():
        set_policies(USER, SCOPE)


def downgrade() -> None:
    with op.get_context().autocommit_block():
        set_policies(f"(SELECT {USER})", f"(SELECT {SCOPE})")


def set_policies(user: str, scope: str) -> None:
    in_system_scope = f"{scope} = 'system'"
    set_policy("tenant", "users", f"id = {user} OR {in_system_scope}")
    # events of no user are in the system scope only
    set_policy("tenant", "audit_events", f"(user_id = {user} AND user_id <> '') OR {in_system_scope}")
    set_policy("system", "public_listings", in_system_scope)
    for table in TABLES:
        set_policy("tenant", table, f"user_id = {user} OR {in_system_scope}")


def set_policy(name: str, table: str, condition: str) -> None:
    op.execute(f"ALTER POLICY {name} ON {table} TO toolscout_app USING ({condition})")
