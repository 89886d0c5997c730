"""Runs the migrations on the connection that the caller hands over: `toolscout migrate`, or the service's start."""

from alembic import context

from app.db.tables import metadata


def run() -> None:
    connection = context.config.attributes.get("connection")
    if connection is None:
        raise SystemExit("migrations run through `toolscout migrate`, which takes a lock and checks the server first")
    context.configure(connection=connection, target_metadata=metadata)
    with context.begin_transaction():
        context.run_migrations()


run()
