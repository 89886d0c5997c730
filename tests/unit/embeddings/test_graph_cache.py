"""The cache of graphs, with small files in place of real graphs."""

import os
import tempfile
import time
from pathlib import Path
from typing import cast

import pytest

from app.embeddings.graph import Graph
from app.embeddings.graph_cache import GRAPH_FILE, HASHES_FILE, MAX_ENTRIES, WEIGHTS_FILE, GraphCache


class FakeGraph:
    def write(self, path: Path, weights: str) -> None:
        path.write_bytes(b"graph")
        (path.parent / weights).write_bytes(b"weights")

    def serialize(self) -> bytes:
        return b"graph and weights"


class Builder:
    """Counts the graphs that are built, and reads what is loaded."""

    def __init__(self, cache: GraphCache) -> None:
        self.built = 0
        self.cache = cache

    def load(self, key: str = "one") -> bytes:
        return self.cache.load(key, self.build, self.read)

    def build(self) -> Graph:
        self.built += 1
        return cast("Graph", FakeGraph())

    def read(self, graph: str | bytes) -> bytes:
        return graph if isinstance(graph, bytes) else Path(graph).read_bytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data" / "models"


@pytest.fixture
def builder(folder: Path) -> Builder:
    return Builder(GraphCache(folder))


def test_a_graph_is_built_once(builder: Builder, folder: Path) -> None:
    assert [builder.load(), builder.load()] == [b"graph", b"graph"]
    assert builder.built == 1
    assert Builder(GraphCache(folder)).load() == b"graph"
    assert [path.name for path in folder.iterdir()] == ["one"]
    builder.load("another")
    assert builder.built == 2


@pytest.mark.parametrize("name", [GRAPH_FILE, WEIGHTS_FILE, HASHES_FILE])
@pytest.mark.parametrize("content", [b"", b"something else", b"\xff\xfe", None])
def test_a_damaged_entry_is_built_again(builder: Builder, folder: Path, name: str, content: bytes | None) -> None:
    builder.load()
    damaged = folder / "one" / name
    if content is None:
        damaged.unlink()
    else:
        damaged.write_bytes(content)
    assert builder.load() == b"graph"
    assert builder.built == 2
    assert builder.load() == b"graph"
    assert builder.built == 2


def test_an_intact_entry_that_cannot_be_loaded_is_built_again(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    builder.load()
    failures = [RuntimeError("another version")]

    def fail_once(_graph: str | bytes) -> bytes:
        if failures:
            raise failures.pop()
        return b"graph"

    monkeypatch.setattr(builder, "read", fail_once)
    assert builder.load() == b"graph"
    assert builder.built == 2
    assert "cannot load the cached graph" in caplog.text


def test_a_new_graph_that_cannot_be_loaded_is_an_error_and_is_not_cached(
    builder: Builder, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_graph: str | bytes) -> bytes:
        raise ValueError("no such operator")

    monkeypatch.setattr(builder, "read", fail)
    with pytest.raises(ValueError, match="no such operator"):
        builder.load()
    assert list(folder.iterdir()) == []


def test_without_a_writable_folder_the_graph_is_loaded_from_a_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    builder = Builder(GraphCache(tmp_path / "file" / "models"))
    assert builder.load() == b"graph"
    assert list(temporary.iterdir()) == []
    assert Builder(GraphCache(None)).load() == b"graph"


def test_without_any_writable_folder_the_graph_is_loaded_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    assert Builder(GraphCache(tmp_path / "file" / "models")).load() == b"graph and weights"


def test_a_filled_cache_may_be_read_only(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    builder.load()

    def fail(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", fail)
    monkeypatch.setattr(tempfile, "TemporaryDirectory", fail)
    assert builder.load() == b"graph"
    assert builder.built == 1


def test_a_full_disk_is_no_error(builder: Builder, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_graph: FakeGraph, _path: Path, _weights: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FakeGraph, "write", fail)
    assert builder.load() == b"graph and weights"
    assert list(folder.iterdir()) == []


def test_the_entries_that_were_used_last_are_kept(builder: Builder, folder: Path) -> None:
    keys = [f"key{number}" for number in range(MAX_ENTRIES)]
    for age, key in enumerate(reversed(keys)):
        builder.load(key)
        os.utime(folder / key, (time.time() - 100 + age,) * 2)
    builder.load(keys[-1])  # the oldest one is used again
    builder.load("new")
    assert {path.name for path in folder.iterdir()} == {*keys, "new"} - {keys[-2]}


def test_what_a_killed_process_left_is_removed_after_an_hour(builder: Builder, folder: Path) -> None:
    builder.load()
    for name, age in ((".building-old", 4000), (".building-new", 10)):
        (folder / name).mkdir()
        os.utime(folder / name, (time.time() - age,) * 2)
    builder.load("another")
    assert {path.name for path in folder.iterdir()} == {"one", "another", ".building-new"}
