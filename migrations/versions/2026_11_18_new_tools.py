"""Tools that appear on a server after its first listing can be held until somebody approves them.

All tools that are stored already stay approved.
"""

from migrations.statements import execute_each

revision = "2026_11_18_new_tools"
down_revision = "2026_11_18_server_connections"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE policy ADD COLUMN hold_new boolean NOT NULL DEFAULT false;
ALTER TABLE mcp_servers ADD COLUMN listed_at timestamptz;
UPDATE mcp_servers s SET listed_at = now() WHERE
    EXISTS (SELECT FROM mcp_tools t WHERE t.user_id = s.user_id AND t.server_id = s.id)
    OR EXISTS (SELECT FROM index_runs r WHERE r.user_id = s.user_id AND r.server_id = s.id AND r.state = 'succeeded');
ALTER TABLE mcp_tools DROP CONSTRAINT mcp_tools_state_check;
ALTER TABLE mcp_tools ADD CONSTRAINT mcp_tools_state_check CHECK (state IN ('approved', 'changed', 'new'));
DROP INDEX mcp_tools_in_question;
CREATE INDEX mcp_tools_in_question ON mcp_tools (user_id, server_id)
    WHERE state <> 'approved' OR hidden_by IN ('changed', 'new', 'status');
"""

# a tool that was held stays hidden: older versions know of changed tools only
DOWNGRADE = """
UPDATE mcp_tools SET state = 'changed', hidden_by = CASE hidden_by WHEN 'new' THEN 'changed' ELSE hidden_by END
    WHERE state = 'new';
ALTER TABLE mcp_tools DROP CONSTRAINT mcp_tools_state_check;
ALTER TABLE mcp_tools ADD CONSTRAINT mcp_tools_state_check CHECK (state IN ('approved', 'changed'));
DROP INDEX mcp_tools_in_question;
CREATE INDEX mcp_tools_in_question ON mcp_tools (user_id, server_id)
    WHERE state = 'changed' OR hidden_by IN ('changed', 'status');
ALTER TABLE mcp_servers DROP COLUMN listed_at;
ALTER TABLE policy DROP COLUMN hold_new;
"""


def upgrade() -> None:
    execute_each(UPGRADE)


def downgrade() -> None:
    execute_each(DOWNGRADE)
