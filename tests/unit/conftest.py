"""Unit tests run without Postgres."""

import pytest


@pytest.fixture(scope="session")
def postgres() -> None:
    pytest.fail("a unit test must not start Postgres: move it to tests/integration", pytrace=False)
