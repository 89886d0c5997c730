#!/bin/sh
# The image runs this once on each node, as a superuser, in the database that it has created. After a change of a
# password, run it again: docker compose exec --user postgres NODE sh /docker-entrypoint-initdb.d/init.sh
set -eu
umask 077

# The nodes log in to one another: as the superuser for what Citus does by itself, as the two roles for what Toolscout
# does. These are the passwords for all nodes.
entry() {
    password=$(sed 's/[\\:]/\\&/g' "/run/secrets/$2")
    printf '*:*:*:%s:%s\n' "$1" "$password"
}
{
    entry postgres postgres_password
    entry toolscout database_password
    entry toolscout_app app_role_password
} >"$PGPASSFILE.new"
mv -f "$PGPASSFILE.new" "$PGPASSFILE"

# Each node sets the superuser's password for itself, over its socket, which asks for none. join-nodes sets those of the
# two roles, and logs in with this one.
psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --set password="$(cat /run/secrets/postgres_password)" \
    --username postgres --dbname toolscout <<'SQL'
CREATE EXTENSION IF NOT EXISTS citus;
SET citus.enable_ddl_propagation TO off;
ALTER ROLE postgres PASSWORD :'password';
SQL
