"""Calibrations of models and of users."""

import pytest

from app.embeddings.calibration import Calibration, UserCalibration, load_shipped_calibration, shift_chance

MODEL = "local:granite-embedding-30m-english-int8"
OWN = UserCalibration(MODEL, 5.0, 1.0, -2.0, 0.1, 0.6, 0.04)


@pytest.fixture(scope="module")
def shipped() -> Calibration:
    return load_shipped_calibration(MODEL)


def test_the_file_of_a_shipped_calibration_is_read_once(monkeypatch: pytest.MonkeyPatch, shipped: Calibration) -> None:
    monkeypatch.setattr("pathlib.Path.read_bytes", lambda _path: pytest.fail("read again"))
    assert load_shipped_calibration(MODEL) is shipped


def test_a_shift_raises_every_chance_by_as_many_logits(shipped: Calibration) -> None:
    for evidence in (0.0, 0.4, 0.9):
        chance = shipped.estimate_match(evidence, 0.3)
        assert shipped.shift(0.7).estimate_match(evidence, 0.3) == pytest.approx(shift_chance(chance, 0.7))
        assert shift_chance(shift_chance(chance, 0.7), -0.7) == pytest.approx(chance)
    assert shipped.shift(0.0) is shipped


def test_a_user_s_own_values_replace_those_of_the_model_and_keep_its_vectors(shipped: Calibration) -> None:
    own = shipped.personalize(OWN)
    assert own.to_json() == shipped.to_json() | OWN.get_values()
    assert own.center_vector is shipped.center_vector
    assert shipped.personalize(None) is shipped


def test_own_values_are_read_for_their_model_only() -> None:
    stored = OWN.to_json()
    assert UserCalibration.from_json(stored, MODEL) == OWN
    assert UserCalibration.from_json(stored, "openai:other") is None
    assert UserCalibration.from_json(None, MODEL) is None
    del stored["bias"]
    assert UserCalibration.from_json(stored, MODEL) is None


def test_the_hash_of_the_values_changes_with_the_chances(shipped: Calibration) -> None:
    assert shipped.hash_values(MODEL) == load_shipped_calibration(MODEL).hash_values(MODEL)
    hashes = {each.hash_values(MODEL) for each in (shipped, shipped.personalize(OWN), shipped.shift(0.1))}
    assert len({*hashes, shipped.hash_values("openai:other")}) == 4
