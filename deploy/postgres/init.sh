#!/bin/sh
# Run once, by the Postgres image, as superuser. The service logs in as an owner that is none: row-level security must bind it.
set -eu
psql --set ON_ERROR_STOP=1 --set password="$TOOLSCOUT_DATABASE_PASSWORD" --username "$POSTGRES_USER" --dbname postgres <<'SQL'
CREATE ROLE toolscout LOGIN CREATEROLE PASSWORD :'password';
CREATE DATABASE toolscout OWNER toolscout;
\connect toolscout
CREATE EXTENSION vector;
SQL
