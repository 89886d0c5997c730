"""Databases whose owners are not superusers, as on a hosted Postgres."""

import uuid

import psycopg

from app.local_postgres.postgres import EmbeddedPostgres


def as_superuser(cluster: EmbeddedPostgres, *statements: str, database: str = "toolscout") -> None:
    """Run the statements as a superuser of the cluster."""
    with psycopg.connect(cluster.url.replace("/toolscout?", f"/{database}?"), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def create_owned_database(cluster: EmbeddedPostgres, options: str = "CREATEROLE", *, extension: bool = True) -> str:
    """Return the URL of a new database whose owner is not a superuser."""
    name = f"owner_{uuid.uuid4().hex[:8]}"
    as_superuser(cluster, f"CREATE ROLE {name} LOGIN {options}", f"CREATE DATABASE {name} OWNER {name}")
    if extension:
        as_superuser(cluster, "CREATE EXTENSION vector", database=name)
    return cluster.url.replace("postgres@/toolscout?", f"{name}@/{name}?")


def owner_name(url: str) -> str:
    return url.partition("://")[2].partition("@")[0]
