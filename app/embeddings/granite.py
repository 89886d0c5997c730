"""The model granite-embedding-30m-english (IBM, Apache-2.0) on onnxruntime and `tokenizers`: no download, no GPU."""

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from app.embeddings.base import Vectors
from app.embeddings.graph_cache import GraphCache
from app.embeddings.local_models import LocalModel
from app.embeddings.pack import Pack
from app.errors import ConfigurationError, EmbeddingFailed

# The official builds of onnxruntime send usage data to Microsoft and store an id of the device, unless this is set
# before they are imported.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import onnxruntime

if TYPE_CHECKING:
    from app.embeddings.graph import Graph

MAX_TOKENS = 256
"""The model allows 512, but a description states its purpose early, and a long text would take over twice the time."""

MAX_CHARACTERS = MAX_TOKENS * 128
"""The longest token has 128 bytes, so text beyond this cannot be among the first MAX_TOKENS. The tokenizer reads
everything before it truncates, and would spend a second on a megabyte."""

MAX_RUN_TOKENS = 128
"""The number of tokens in a run, unless a text alone has more. A run of 8 messages takes 45 % of the time of 8 runs of
one, because it reads the weights once; more in a run would gain little, and delay those that wait."""

_ERRORS_ONLY = 3
"""The log level of onnxruntime, which writes to stderr past our own log."""


class Granite:
    """The model. Embedding changes no state, so threads may share one instance."""

    def __init__(self, pack: Pack, session: onnxruntime.InferenceSession) -> None:
        self.dimension = pack.architecture.hidden
        self._session = session
        self._tokenizer = _load_tokenizer(pack.tokenizer, min(MAX_TOKENS, pack.architecture.max_positions))

    @classmethod
    def load(cls, model: LocalModel, cache: GraphCache) -> Self:
        """Load a model. Raise `ConfigurationError` if it is unusable or its pack has changed."""
        pack = Pack.load(model.path, sha256=model.sha256)
        if model.adapter is not None:
            model.adapter.check_fits(pack.architecture)

        def build() -> "Graph":
            # Imported here because a start from the cache does not need it.
            from app.embeddings.graph import build_graph  # noqa: PLC0415

            return build_graph(pack, model.adapter, model.precision)

        try:
            return cls(pack, cache.load(model.graph_key, build, _open_session))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{model.path} is not a usable pack: {error!r}") from error

    def embed(self, texts: Sequence[str], kind: Literal["document", "query"] = "document") -> Vectors:
        """Embed the texts, several in each run of the model. The vector of a text does not depend on the others."""
        vectors = np.empty((len(texts), self.dimension), np.float32)
        tokens = self._tokenize(texts)
        for rows in _group(list(map(len, tokens))):
            try:
                [vectors[rows]] = self._session.run([kind], _make_inputs([tokens[row] for row in rows]))
            except Exception as error:  # the library's errors have no common base
                raise EmbeddingFailed("runtime", f"onnxruntime cannot embed the text: {error}") from error
        return vectors

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        # A lone surrogate has no UTF-8 form and the tokenizer rejects it; it becomes a question mark.
        readable = [text[:MAX_CHARACTERS].encode(errors="replace").decode() for text in texts]
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(readable)]


def _group(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the rows of texts for one run each: texts of similar lengths, because the shorter ones are padded."""
    group: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        if group and sum(lengths[each] for each in group) + lengths[row] > MAX_RUN_TOKENS:
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _make_inputs(tokens: Sequence[Sequence[int]]) -> dict[str, npt.NDArray[Any]]:
    """Return the inputs of the graph, which `app.embeddings.graph` describes."""
    lengths = np.array([len(ids) for ids in tokens])[:, None]
    starts = np.cumsum(lengths)[:, None] - lengths
    columns = np.arange(lengths.max())
    is_token = columns < lengths
    return {
        "ids": np.concatenate(tokens, dtype=np.int64),
        "positions": np.broadcast_to(columns, is_token.shape)[is_token],
        "padded": np.where(is_token, starts + columns, starts),
        "mask": np.where(is_token, np.float32(0), np.float32(-np.inf))[:, None, None, :],
        "unpadded": np.flatnonzero(is_token),
        "first": starts + np.arange(2),
    }


def _open_session(graph: str | bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    # One thread, the caller's: those that wait for each other cost more than the small products of a query gain, and
    # waiting threads spin.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # A pattern would be kept for each number of tokens.
    options.enable_mem_pattern = False
    try:
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the library's errors have no common base
        raise ValueError(f"onnxruntime cannot load its graph: {error}") from error
    # It would keep a graph that is passed as bytes, for a restart with other providers.
    session._model_bytes = None
    return session


def _load_tokenizer(definition: str, max_tokens: int) -> Tokenizer:
    # The tokenizer's threads would not survive a fork, about which some releases warn. A batch takes 1 ms without them.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        tokenizer = Tokenizer.from_str(definition)
    except Exception as error:  # `tokenizers` raises no narrower type
        raise ValueError(f"no usable tokenizer: {error}") from error
    if not tokenizer.num_special_tokens_to_add(is_pair=False):
        raise ValueError("its tokenizer adds no token before the text, and the row of that token is the vector")
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    return tokenizer
