"""Retention of audit events and of cached vectors.

The app role may still not change audit events, and deletes only old ones, through a function that checks their age.
"""

from alembic import op

from migrations.statements import execute_each

revision = "2026_11_18_retention"
down_revision = "2026_11_18_examples_version"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE INDEX embedding_cache_created_at ON embedding_cache (created_at);
CREATE FUNCTION delete_old_audit_events(days integer, batch integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    deleted bigint;
BEGIN
    IF days < 30 THEN
        RAISE EXCEPTION 'audit events are kept for at least 30 days';
    END IF;
    DELETE FROM audit_events WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM audit_events WHERE at < now() - make_interval(days => days) LIMIT batch
    ));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$$;
REVOKE ALL ON FUNCTION delete_old_audit_events(integer, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION delete_old_audit_events(integer, integer) TO toolscout_app;
"""


def upgrade() -> None:
    execute_each(UPGRADE)


def downgrade() -> None:
    op.execute("DROP FUNCTION delete_old_audit_events(integer, integer)")
    op.execute("DROP INDEX embedding_cache_created_at")
