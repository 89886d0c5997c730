"""The levels of the tests: every test carries the marker of its folder, and unit tests have no Postgres."""

from pathlib import Path

import pytest

from app.local_postgres.postgres import EmbeddedPostgres
from tests.conftest import LEVELS
from tests.support.paths import ROOT


def test_every_test_is_in_the_folder_of_a_level() -> None:
    folders = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")}
    assert folders - {"third_party"} == set(LEVELS)


def test_a_test_carries_the_marker_of_its_level(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("unit")
    assert not request.node.get_closest_marker("integration")


@pytest.mark.parametrize("fixture", ["postgres", "container", "user"])
def test_a_unit_test_cannot_use_fixtures_that_need_postgres(request: pytest.FixtureRequest, fixture: str) -> None:
    with pytest.raises(pytest.fail.Exception, match="move it to tests/integration"):
        request.getfixturevalue(fixture)


def test_a_unit_test_cannot_start_postgres_itself(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="move it to tests/integration"):
        EmbeddedPostgres(tmp_path).start()
