"""Keep the graphs of local models in a folder, so that later starts need not build them.

An entry is a folder with the graph, its weights and a file of their hashes. The weights are apart, because the runtime
maps them into memory instead of copying them. A cache that is damaged or cannot be written is never an error.
"""

import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from app.embeddings.graph import Graph

logger = logging.getLogger("toolscout.embeddings")

MAX_ENTRIES = 4
"""During a model switch two models are in use, and two versions of Toolscout may share a folder."""

GRAPH_FILE = "graph.onnx"
WEIGHTS_FILE = "weights.bin"
HASHES_FILE = "sha256"

_BUILDING = ".building-"
_ABANDONED_S = 3600.0

Session = TypeVar("Session")


class GraphCache:
    def __init__(self, folder: Path | None) -> None:
        """`folder` is created when needed. With None, nothing is kept."""
        self._folder = folder

    def load(self, key: str, build: "Callable[[], Graph]", load: Callable[[str | bytes], Session]) -> Session:
        """Return what `load` makes of a graph: of the cached one, or else of a new one, which is cached.

        `load` gets the path of the graph, which may be gone later, or its content if no file can be written.
        """
        entry = None if self._folder is None else self._folder / key
        if entry is not None and _is_intact(entry):
            with suppress(OSError):  # a read-only folder
                os.utime(entry)  # `_remove_old_entries` keeps the entries that were used last
            try:
                return load(str(entry / GRAPH_FILE))
            except Exception:  # boundary: whatever is wrong with it, it can be built again
                logger.warning("cannot load the cached graph %s", entry, exc_info=True)
        for folder in (self._folder, Path(tempfile.gettempdir())):
            if folder is not None and (temporary := _write(folder, build)) is not None:
                with temporary:
                    session = load(str(Path(temporary.name) / GRAPH_FILE))
                    if entry is not None and folder == self._folder:
                        _publish(Path(temporary.name), entry)
                return session
        return load(build().serialize())


def _is_intact(entry: Path) -> bool:
    try:
        return (entry / HASHES_FILE).read_text() == _hash_files(entry)
    except (OSError, UnicodeDecodeError):
        return False


def _hash_files(entry: Path) -> str:
    lines = []
    for name in (GRAPH_FILE, WEIGHTS_FILE):
        with (entry / name).open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n")
    return "".join(lines)


def _write(folder: Path, build: "Callable[[], Graph]") -> "tempfile.TemporaryDirectory[str] | None":
    """Write a new graph into a new folder in `folder`. Return None if that is not possible."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(prefix=_BUILDING, dir=folder, ignore_cleanup_errors=True)
    except OSError as error:
        logger.info("cannot write a graph of the local model to %s: %s", folder, error.strerror)
        return None
    path = Path(temporary.name)
    try:
        build().write(path / GRAPH_FILE, WEIGHTS_FILE)
        (path / HASHES_FILE).write_text(_hash_files(path))
    except OSError as error:
        temporary.cleanup()
        logger.info("cannot write a graph of the local model to %s: %s", folder, error.strerror)
        return None
    return temporary


def _publish(built: Path, entry: Path) -> None:
    """Make a written graph the entry of the cache, in one step, in place of a damaged one."""
    try:
        shutil.rmtree(entry, ignore_errors=True)
        built.rename(entry)
        _remove_old_entries(entry.parent)
    except OSError as error:  # for example, another process was faster
        logger.info("cannot cache the graph of the local model in %s: %s", entry, error.strerror)


def _remove_old_entries(folder: Path) -> None:
    """Keep the entries that were used last. Remove what processes that were killed have left."""
    entries = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    abandoned = time.time() - _ABANDONED_S
    old = [path for path in entries if not path.name.startswith(_BUILDING)][MAX_ENTRIES:]
    old += [path for path in entries if path.name.startswith(_BUILDING) and path.stat().st_mtime < abandoned]
    for path in old:
        shutil.rmtree(path, ignore_errors=True)
