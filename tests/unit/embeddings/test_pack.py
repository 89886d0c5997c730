from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.embeddings import pack as pack_module
from app.embeddings.pack import MAGIC, PACK_SHA256, PACKAGED_MODEL, Pack, QuantizedMatrix, find_packaged_pack
from app.errors import ConfigurationError


@pytest.fixture(scope="module")
def content() -> bytes:
    return find_packaged_pack().read_bytes()


@pytest.fixture
def write_pack(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(content: bytes) -> Path:
        path = tmp_path / "own.hmsemb"
        path.write_bytes(content)
        return path

    return write


def test_the_packaged_pack_has_the_known_hash_and_architecture() -> None:
    pack = Pack.load(find_packaged_pack(), sha256=PACK_SHA256)
    assert (pack.sha256, pack.name) == (PACK_SHA256, PACKAGED_MODEL)
    assert (pack.architecture.layers, pack.architecture.hidden, pack.architecture.max_positions) == (6, 384, 512)
    for kind, shape in pack.architecture.linear_shapes.items():
        assert pack.read_matrix(f"l5.{kind}.w").dequantize().shape == shape


def test_a_tampered_file_is_rejected_if_the_hash_is_known(content: bytes, write_pack: Callable[[bytes], Path]) -> None:
    path = write_pack(content[:-4] + bytes([content[-4] ^ 1]) + content[-3:])
    with pytest.raises(ConfigurationError, match="is not the expected model: its sha256 is"):
        Pack.load(path, sha256=PACK_SHA256)
    assert Pack.load(path).sha256 != PACK_SHA256


def test_a_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.hmsemb cannot be read: No such file"):
        Pack.load(tmp_path / "nowhere.hmsemb")


@pytest.mark.parametrize("content", [b"", b"HMSEMB", b"GGUF and whatever follows"])
def test_a_file_that_is_not_a_pack_is_rejected(content: bytes, write_pack: Callable[[bytes], Path]) -> None:
    with pytest.raises(ConfigurationError, match="is not a model pack"):
        Pack.load(write_pack(content))


@pytest.mark.parametrize("keep", [len(MAGIC), 1_000_000, 2_000_000, -1])
def test_a_truncated_pack_is_rejected(content: bytes, write_pack: Callable[[bytes], Path], keep: int) -> None:
    with pytest.raises(ConfigurationError, match="is not a usable pack"):
        Pack.load(write_pack(content[:keep]))


@pytest.mark.parametrize(
    ("found", "replacement", "reason"),
    [(b'"cls"', b'"avg"', "pooling is avg"), (b'"query_prefix":""', b'"query_prefix":1 ', "prefix")],
)
def test_a_pack_of_another_kind_of_model_is_rejected(
    content: bytes, write_pack: Callable[[bytes], Path], found: bytes, replacement: bytes, reason: str
) -> None:
    assert found in content
    with pytest.raises(ConfigurationError, match=reason):
        Pack.load(write_pack(content.replace(found, replacement, 1)))


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_module, "PACKAGE", "missing_package")
    with pytest.raises(ConfigurationError, match="needs the package missing_package"):
        find_packaged_pack()


def test_a_quantized_matrix_is_close_to_the_original() -> None:
    matrix = np.random.default_rng(1).normal(size=(3, 128)).astype(np.float32)
    matrix[1, :64] = 0
    quantized = QuantizedMatrix.quantize(matrix, group=64)
    np.testing.assert_allclose(quantized.dequantize(), matrix, atol=np.abs(matrix).max() / 127)
    assert quantized.numbers.shape == (3, 2, 64)
    assert np.abs(quantized.numbers).max() == 127
