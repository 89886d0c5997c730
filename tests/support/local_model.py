"""One copy of the packaged embedding model for each process.

Loading the weights and the tokenizer takes half a second of CPU, which every container that a test opens would pay.
"""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from app.embeddings.granite import Granite
from app.embeddings.pack import find_packaged_pack
from app.embeddings.token_counter import load_token_counter


def share_packaged_model(patch: pytest.MonkeyPatch) -> None:
    """Load the packaged model once. Models at other paths are loaded each time: tests write them."""
    load = Granite.load
    load_once = cache(load)
    packaged = find_packaged_pack()

    def load_shared(path: Path, **options: Any) -> Granite:
        return (load_once if path == packaged else load)(path, **options)

    patch.setattr(Granite, "load", load_shared)
    patch.setattr("app.container.load_token_counter", cache(load_token_counter))
