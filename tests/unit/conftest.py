"""Unit tests run without Postgres."""

from typing import NoReturn

import pytest

from app.local_postgres.postgres import EmbeddedPostgres


@pytest.fixture(scope="session")
def postgres() -> NoReturn:
    """Replaces the fixture of all tests, and with it everything that is built on it."""
    _refuse()


@pytest.fixture(autouse=True)
def _no_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmbeddedPostgres, "start", _refuse)


def _refuse(*_: object) -> NoReturn:
    pytest.fail("a unit test must not start Postgres: move it to tests/integration", pytrace=False)
