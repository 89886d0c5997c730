"""What a distributed database needs: the users with waiting runs by themselves, and deletion without `ctid`.

A `ctid` would name rows of several partitions. Users whose categories are due are listed in one order on all nodes.
"""

from alembic import op

revision = "2026_11_19_distributable"
down_revision = "2026_11_19_key_hash"
branch_labels = None
depends_on = None

DELETE_OLD_AUDIT_EVENTS = """
CREATE OR REPLACE FUNCTION delete_old_audit_events(days integer, batch integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    deleted bigint;
BEGIN
    IF days < 30 THEN
        RAISE EXCEPTION 'audit events are kept for at least 30 days';
    END IF;
    DELETE FROM audit_events {condition};
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$$
"""
BY_KEY = """event USING (SELECT user_id, id FROM audit_events WHERE {expired} LIMIT batch) expired
    WHERE event.user_id = expired.user_id AND event.id = expired.id"""
BY_ROW = "WHERE ctid = ANY (ARRAY(SELECT ctid FROM audit_events WHERE {expired} LIMIT batch))"
OWN = "user_id = current_setting('app.user_id', true)"
IN_SYSTEM_SCOPE = "current_setting('app.scope', true) = 'system'"
WAITING_USERS = """
CREATE TABLE waiting_users (
    user_id text NOT NULL,
    id bigint GENERATED ALWAYS AS IDENTITY,
    since timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_id, id)
)
"""
USERS_WITHOUT_CATEGORIES = """
CREATE INDEX users_without_categories ON users ({key}) WHERE categories_version <> catalog_version
"""
EXPIRED = "at < now() - make_interval(days => days)"


def upgrade() -> None:
    op.execute(WAITING_USERS)
    op.execute("CREATE INDEX waiting_users_id ON waiting_users (id)")
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON waiting_users TO toolscout_app")
    op.execute("ALTER TABLE waiting_users ENABLE ROW LEVEL SECURITY")
    op.execute(f"CREATE POLICY tenant ON waiting_users TO toolscout_app USING ({OWN} OR {IN_SYSTEM_SCOPE})")
    op.execute(DELETE_OLD_AUDIT_EVENTS.format(condition=BY_KEY.format(expired=EXPIRED)))
    set_order_of_users('id COLLATE "C"')


def downgrade() -> None:
    set_order_of_users("id")
    op.execute(DELETE_OLD_AUDIT_EVENTS.format(condition=BY_ROW.format(expired=EXPIRED)))
    op.execute("DROP TABLE waiting_users")


def set_order_of_users(key: str) -> None:
    op.execute("DROP INDEX users_without_categories")
    op.execute(USERS_WITHOUT_CATEGORIES.format(key=key))
