#!/bin/sh
# The Postgres image runs this once, as a superuser. The service logs in as an owner that is not a superuser, so that
# row-level security applies to it.
set -eu
password=$(cat /run/secrets/database_password)
psql --set ON_ERROR_STOP=1 --set password="$password" --username "$POSTGRES_USER" --dbname postgres <<'SQL'
CREATE ROLE toolscout LOGIN CREATEROLE PASSWORD :'password';
CREATE DATABASE toolscout OWNER toolscout;
\connect toolscout
CREATE EXTENSION vector;
SQL
