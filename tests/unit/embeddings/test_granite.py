"""The model on onnxruntime: its vectors, and what it must not do to its process."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import app
from app.embeddings.base import Vectors
from app.embeddings.granite import MAX_CHARACTERS, MAX_TOKENS, Granite
from app.embeddings.local_models import LocalModel, Precision, find_shipped_model
from app.embeddings.pack import Pack, find_packaged_pack
from app.errors import ConfigurationError
from tests.support.local_model import NO_CACHE, make_base_model, make_factors, read_reference_vectors, write_adapter


def load(model: LocalModel) -> Granite:
    return Granite.load(model, NO_CACHE)


def measure_cosines(one: Vectors, other: Vectors) -> Vectors:
    products = (one.astype(np.float64) * other).sum(axis=1)
    return np.asarray(products / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1))


def test_fp32_gives_the_vectors_of_version_0_1_0() -> None:
    texts, vectors = read_reference_vectors()
    assert measure_cosines(load(make_base_model()).embed(texts), vectors).min() >= 0.9999997


def test_int8_gives_almost_the_same_vectors() -> None:
    texts, vectors = read_reference_vectors()
    cosines = measure_cosines(load(make_base_model("int8")).embed(texts), vectors)
    assert 0.999 < cosines.min() < 0.9999997


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_text_has_the_same_vector_with_any_neighbours(precision: Precision) -> None:
    texts, _ = read_reference_vectors()
    model = load(make_base_model(precision))
    together = model.embed(texts)
    for row in (0, 20, 30, 37):
        np.testing.assert_array_equal(model.embed([texts[row]])[0], together[row])
    np.testing.assert_array_equal(model.embed(texts[::-1])[::-1], together)


def test_text_cut_before_tokenizing_is_beyond_the_token_limit() -> None:
    vocabulary = json.loads(Pack.load(find_packaged_pack()).tokenizer)["model"]["vocab"]
    assert max(map(len, vocabulary)) * MAX_TOKENS <= MAX_CHARACTERS


def test_a_pack_without_a_usable_tokenizer_is_rejected(tmp_path: Path) -> None:
    content = find_packaged_pack().read_bytes()
    assert b'"BPE"' in content
    path = tmp_path / "own.hmsemb"
    path.write_bytes(content.replace(b'"BPE"', b'"???"', 1))
    with pytest.raises(ConfigurationError, match="no usable tokenizer"):
        load(replace(make_base_model(), path=path, sha256=Pack.load(path).sha256))


def test_a_pack_that_has_changed_since_its_id_was_read_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "own.hmsemb"
    path.write_bytes(find_packaged_pack().read_bytes())
    with pytest.raises(ConfigurationError, match="is not the expected model"):
        load(replace(make_base_model(), path=path, sha256="0" * 64))


@pytest.mark.parametrize(("precision", "least"), [("fp32", 0.9999997), ("int8", 0.999)])
def test_the_factors_of_an_adapter_are_added_to_the_weights(tmp_path: Path, precision: Precision, least: float) -> None:
    texts, adapted = read_reference_vectors(adapted=True)
    base = make_base_model(precision)
    model = load(replace(base, adapter=write_adapter(tmp_path / "adapter.npz", make_factors())))
    assert measure_cosines(model.embed(texts), adapted).min() >= least
    assert measure_cosines(load(base).embed(texts), adapted).max() < 0.998


def test_a_query_map_applies_to_messages_only(tmp_path: Path) -> None:
    texts, vectors = read_reference_vectors()
    matrix = np.random.default_rng(8).normal(size=(384, 384)).astype(np.float32)
    model = load(replace(make_base_model(), adapter=write_adapter(tmp_path / "adapter.npz", {"query_map": matrix})))
    mapped = vectors @ matrix.T
    np.testing.assert_allclose(model.embed(texts, "document"), vectors, atol=1e-5)
    np.testing.assert_allclose(
        model.embed(texts, "query"), mapped / np.linalg.norm(mapped, axis=1, keepdims=True), atol=1e-5
    )


def test_without_a_query_map_a_message_and_a_tool_with_the_same_text_have_the_same_vector() -> None:
    texts, _ = read_reference_vectors()
    model = load(make_base_model())
    np.testing.assert_array_equal(model.embed(texts[:5], "query"), model.embed(texts[:5], "document"))


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"query_map": np.eye(383, dtype=np.float32)}, r"query_map has the shape \(383, 383\), not \(384, 384\)"),
        (
            {"layers.1.ao.a": np.zeros((2, 384), np.float16), "layers.1.ao.b": np.zeros((383, 2), np.float16)},
            r"b @ a of layers\.1\.ao has the shape \(383, 384\), not \(384, 384\)",
        ),
        (
            {"layers.6.ao.a": np.zeros((2, 384), np.float16), "layers.6.ao.b": np.zeros((384, 2), np.float16)},
            "factors for layer 6, but the model has 6",
        ),
    ],
)
def test_an_adapter_of_another_model_is_rejected(
    tmp_path: Path, arrays: dict[str, npt.NDArray[Any]], reason: str
) -> None:
    model = replace(make_base_model(), adapter=write_adapter(tmp_path / "adapter.npz", arrays))
    with pytest.raises(ConfigurationError, match=reason):
        load(model)


def run_script(script: str, home: Path) -> tuple[int, str]:
    """Run a script in a process of its own, with a home folder of its own."""
    environment = {"HOME": str(home), "TMPDIR": str(home), "PATH": ""}
    finished = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(app.__file__).parents[1],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return finished.returncode, finished.stderr


def test_embedding_starts_no_threads_so_that_a_fork_is_safe_and_silent(tmp_path: Path) -> None:
    script = """
import os
import psutil
from app.embeddings.granite import Granite
from app.embeddings.graph_cache import GraphCache
from app.embeddings.local_models import find_shipped_model

threads = psutil.Process().num_threads()
model, texts = Granite.load(find_shipped_model(), GraphCache(None)), ["a few words"] * 10
model.embed(texts)
assert psutil.Process().num_threads() == threads, psutil.Process().threads()
if os.fork() == 0:
    model.embed(texts)
    os._exit(0)
assert os.wait()[1] == 0
"""
    assert run_script(script, tmp_path) == (0, "")


@pytest.mark.parametrize("before", ["", "os.environ['ORT_DISABLE_TELEMETRY'] = '0'"])
def test_onnxruntime_keeps_no_usage_data_and_opens_no_connection(tmp_path: Path, before: str) -> None:
    script = f"""
import os
{before}
import psutil
from app.embeddings.granite import Granite
from app.embeddings.graph_cache import GraphCache
from app.embeddings.local_models import find_shipped_model

Granite.load(find_shipped_model(), GraphCache(None)).embed(["a few words"])
assert psutil.Process().net_connections() == []
"""
    assert run_script(script, tmp_path) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_an_adapter_that_ships_has_its_own_name_and_calibration() -> None:
    shipped = find_shipped_model()
    if shipped.adapter is not None:
        folder = Path(app.__file__).parent / "embeddings"
        assert (folder / f"granite+{shipped.adapter.name}.npz").is_file()
        assert (folder / f"granite+{shipped.adapter.name}.json").is_file()
