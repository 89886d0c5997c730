"""Searches for secrets in places where none may be: logs, answers, metrics, a dump of the database."""

import base64
from collections.abc import Iterable

import psycopg


def encodings(secret: str) -> list[str]:
    """Return the secret in plain text, in hexadecimal and in base64, without the end that a neighbour changes."""
    return [secret, secret.encode().hex(), base64.b64encode(secret.encode()).decode().rstrip("=")[:-2]]


def find_leaks(text: str, secrets: Iterable[str]) -> list[str]:
    return [secret for secret in secrets if any(encoding in text for encoding in encodings(secret))]


def dump_database(url: str) -> dict[str, str]:
    """Return every row of every table, as the superuser sees it."""
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        rows = {name: connection.execute(f"SELECT t::text FROM {name} t".encode()).fetchall() for (name,) in tables}
    return {name: "\n".join(text for (text,) in found) for name, found in rows.items()}
