"""What begins a transaction on a distributed database."""

from collections.abc import Sequence

import pytest

from app.db.scope import DISTRIBUTED_SETTINGS, Mode, Scope, open_fetch, open_transaction


def list_openings(mode: Mode) -> list[Sequence[str]]:
    scope = Scope("alice")
    return [
        opening
        for snapshot in (False, True)
        for opening in (
            open_transaction(scope, mode, snapshot=snapshot),
            open_fetch(scope, mode, snapshot=snapshot).texts,
        )
    ]


@pytest.mark.parametrize("opening", list_openings(Mode.DISTRIBUTED_TRANSACTION))
def test_behind_a_pooler_the_settings_are_set_before_citus_passes_settings_on(opening: Sequence[str]) -> None:
    """After that, each would cost a message to each node."""
    passed_on = opening[opening.index("SET LOCAL citus.propagate_set_commands = 'local'") + 1 :]
    assert passed_on == ("SET LOCAL app.user_id = 'alice'",)
    assert opening[0].startswith("BEGIN")
    assert opening[1] == "SET LOCAL ROLE toolscout_app"
    for name, value in DISTRIBUTED_SETTINGS.items():
        assert f"SET LOCAL {name} = '{value}'" in opening


@pytest.mark.parametrize("opening", list_openings(Mode.DISTRIBUTED))
def test_without_a_pooler_the_settings_are_those_of_the_session(opening: Sequence[str]) -> None:
    assert len(opening) == 4
    assert not any(name in text for name in DISTRIBUTED_SETTINGS for text in opening)
