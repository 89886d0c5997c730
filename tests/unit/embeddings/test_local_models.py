"""The local models that settings can provide, by their ids."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.embeddings import local_models
from app.embeddings.calibration import UNCALIBRATED, is_english_only, load_shipped_calibration
from app.embeddings.factory import make_configured_embedder, make_embedder, make_local_embedders
from app.embeddings.granite import Granite
from app.embeddings.local_models import find_shipped_model, parse_adapter_name
from app.embeddings.pack import find_packaged_pack
from app.errors import ConfigurationError
from tests.support.factories import make_settings
from tests.support.local_model import make_base_model, write_adapter

BASE_ID = "local:granite-embedding-30m-english:6a1cc247"


@pytest.fixture
def _shipped_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ship an adapter that does nothing."""
    path = tmp_path / "granite+tools-9.npz"
    write_adapter(path, {"query_map": np.eye(384, dtype=np.float16)}, name="tools-9")
    monkeypatch.setattr(local_models, "SHIPPED_ADAPTER", "tools-9")
    monkeypatch.setattr(local_models, "SHIPPED_PRECISION", "fp32")
    monkeypatch.setattr(local_models, "get_adapter_path", lambda _name: path)


@pytest.fixture
def own_pack(tmp_path: Path) -> Path:
    """The packaged model with one bit of one number changed."""
    content = find_packaged_pack().read_bytes()
    path = tmp_path / "own.hmsemb"
    path.write_bytes(content[:-4] + bytes([content[-4] ^ 1]) + content[-3:])
    return path


def test_the_id_changes_with_everything_that_changes_the_vectors(tmp_path: Path) -> None:
    base = make_base_model()
    one = write_adapter(tmp_path / "one.npz", {"query_map": np.eye(384, dtype=np.float16)})
    two = write_adapter(tmp_path / "two.npz", {"query_map": np.eye(384, dtype=np.float16) * 2})
    models = [
        base,
        replace(base, precision="int8"),
        replace(base, adapter=one),
        replace(base, adapter=two),
        replace(base, adapter=one, precision="int8"),
        replace(base, sha256="0" * 64),
        replace(base, sha256="0" * 64, adapter=one),
    ]
    assert len({model.id for model in models}) == len({model.graph_key for model in models}) == len(models)
    names = [model.id.rpartition(":")[0].removeprefix("local:granite-embedding-30m-english") for model in models]
    assert names == ["", "+int8", "+tools-1", "+tools-1", "+tools-1+int8", "", "+tools-1"]
    assert [parse_adapter_name(model.id) for model in models] == [None, None, *["tools-1"] * 3, None, "tools-1"]


def test_the_model_of_version_0_1_0_keeps_its_id() -> None:
    assert make_base_model().id == BASE_ID


@pytest.mark.usefixtures("_shipped_adapter")
async def test_settings_provide_the_shipped_model_the_one_of_0_1_0_and_the_operators_own(
    tmp_path: Path, own_pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(tmp_path, embedding_provider="local", local_model=own_pack)
    monkeypatch.setattr(Granite, "load", lambda *_: pytest.fail("a model was loaded that nobody uses"))
    ids = [embedder.model for embedder in make_local_embedders(settings)]
    assert ids[0] == find_shipped_model().id
    assert ids[0].startswith("local:granite-embedding-30m-english+tools-9:")
    assert ids[1] == BASE_ID
    assert ids[2].startswith("local:granite-embedding-30m-english:")
    assert len(set(ids)) == 3
    assert make_configured_embedder(settings).model == ids[2]
    assert make_configured_embedder(make_settings(tmp_path, embedding_provider="local")).model == ids[0]
    assert [make_embedder(settings, model_id).model for model_id in ids] == ids


@pytest.mark.usefixtures("_shipped_adapter")
async def test_the_model_of_version_0_1_0_can_be_loaded_beside_the_shipped_one(tmp_path: Path) -> None:
    embedder = make_embedder(make_settings(tmp_path), BASE_ID)
    assert (await embedder.embed_queries(["a text"])).shape == (1, 384)
    await embedder.aclose()


async def test_an_operators_own_pack_has_its_own_vectors(tmp_path: Path, own_pack: Path) -> None:
    embedder = make_configured_embedder(make_settings(tmp_path, embedding_provider="local", local_model=own_pack))
    assert (await embedder.embed_queries(["a text"])).shape == (1, 384)
    assert [path.name for path in (tmp_path / "models").iterdir()] != []
    await embedder.aclose()


def test_an_unknown_model_is_rejected_with_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="set TOOLSCOUT_LOCAL_MODEL"):
        make_embedder(make_settings(tmp_path), "local:granite-embedding-30m-english+tools-0:00000000")


def test_each_shipped_model_has_its_own_calibration() -> None:
    base = load_shipped_calibration(BASE_ID)
    assert base.is_fitted
    assert load_shipped_calibration(make_base_model("int8").id) == base
    assert load_shipped_calibration("local:granite-embedding-30m-english+unknown:00000000") is UNCALIBRATED
    assert load_shipped_calibration("openai:text-embedding-3-small") is UNCALIBRATED
    assert load_shipped_calibration(find_shipped_model().id).is_fitted


def test_the_packaged_model_is_english_with_any_adapter() -> None:
    assert is_english_only(BASE_ID)
    assert is_english_only(find_shipped_model().id)
    assert not is_english_only("openai:text-embedding-3-small")
