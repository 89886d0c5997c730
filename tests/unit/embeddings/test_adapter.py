from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from app.embeddings.adapter import MAX_BYTES, Adapter
from app.errors import ConfigurationError
from tests.support.local_model import write_adapter

A, B = np.ones((2, 384), np.float16), np.ones((384, 2), np.float16)


def test_an_adapter_has_a_name_a_hash_factors_and_a_map(tmp_path: Path) -> None:
    arrays = {"layers.3.ao.a": A, "layers.3.ao.b": B, "query_map": np.eye(384, dtype=np.float16)}
    adapter = write_adapter(tmp_path / "one.npz", arrays, name="tools-2")
    assert (adapter.name, list(adapter.factors), len(adapter.sha256)) == ("tools-2", ["l3.ao"], 64)
    np.testing.assert_array_equal(adapter.merge("l3.ao", np.ones((384, 384), np.float32)), 3)
    np.testing.assert_array_equal(adapter.merge("l2.ao", np.ones((384, 384), np.float32)), 1)
    assert adapter.query_map is not None
    assert write_adapter(tmp_path / "two.npz", arrays, name="tools-3").sha256 != adapter.sha256


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"layers.0.ao.c": A}, r"unknown keys: layers\.0\.ao\.c"),
        ({"layers.0.other.a": A, "bias": A}, r"unknown keys: bias, layers\.0\.other\.a"),
        ({"layers.0.ao.a": A}, r"layers\.0\.ao has only one of its factors"),
        ({"layers.0.ao.a": A, "layers.0.ao.b": B[:, :1]}, r"the ranks 2 and 1"),
        ({"query_map": np.ones(384, np.float32)}, r"query_map is float32 of shape \(384,\)"),
        ({"query_map": np.ones((384, 384))}, "query_map is float64"),
        ({"layers.0.ao.a": A * np.inf, "layers.0.ao.b": B}, r"layers\.0\.ao\.a has NaN or infinity"),
    ],
)
def test_an_adapter_with_wrong_content_is_rejected(
    tmp_path: Path, arrays: dict[str, npt.NDArray[Any]], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"adapter.npz is not a usable adapter: .*{reason}"):
        write_adapter(tmp_path / "adapter.npz", arrays)


@pytest.mark.parametrize("name", ["", "Tools", "a b", "../up", "int8"])
def test_a_name_that_cannot_be_part_of_a_model_id_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="its name is"):
        write_adapter(tmp_path / "adapter.npz", {}, name=name)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"plain text"])
def test_a_file_that_is_no_archive_is_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "adapter.npz"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="is not a usable adapter"):
        Adapter.load(path)


def test_pickled_objects_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "adapter.npz"
    np.savez(path, name=np.array({"an": "object"}, dtype=object))
    with pytest.raises(ConfigurationError, match="is not a usable adapter"):
        Adapter.load(path)


def test_a_single_array_is_no_archive(tmp_path: Path) -> None:
    path = tmp_path / "adapter.npy"
    np.save(path, A)
    with pytest.raises(ConfigurationError, match=r"it is not an \.npz archive"):
        Adapter.load(path)


def test_a_large_file_is_rejected_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "adapter.npz"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(ConfigurationError, match="at most 5,000,000 are allowed"):
        Adapter.load(path)


def test_a_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        Adapter.load(tmp_path / "nowhere.npz")
