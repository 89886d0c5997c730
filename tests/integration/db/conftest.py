"""The tests of this folder run the migrations themselves."""

import pytest

from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.factories import make_empty_database


@pytest.fixture
def fresh_database(postgres: EmbeddedPostgres) -> str:
    """The URL of a database without a schema, as its owner."""
    return make_empty_database(postgres)
