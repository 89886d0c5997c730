"""${message}."""

from alembic import op
% if "sa." in (upgrades or "") + (downgrades or ""):
import sqlalchemy as sa
% endif
% if "pgvector." in (upgrades or "") + (downgrades or ""):
import pgvector.sqlalchemy
% endif
% if "postgresql." in (upgrades or "") + (downgrades or ""):
from sqlalchemy.dialects import postgresql
% endif

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
