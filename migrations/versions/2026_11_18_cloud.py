"""Projects that are searched through the cloud."""

from alembic import op

revision = "2026_11_18_cloud"
down_revision = "2026_11_18_decisions"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _check_optimization("'bm25', 'semantic', 'hybrid', 'cloud'")


def downgrade() -> None:
    op.execute("UPDATE projects SET optimization = 'bm25' WHERE optimization = 'cloud'")
    _check_optimization("'bm25', 'semantic', 'hybrid'")


def _check_optimization(values: str) -> None:
    op.execute(
        f"""
        ALTER TABLE projects DROP CONSTRAINT projects_optimization_check,
            ADD CONSTRAINT projects_optimization_check CHECK (optimization IN ({values}))
        """
    )
