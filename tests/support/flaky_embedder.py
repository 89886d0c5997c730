"""Request logs that change the mode of a fake embedding server when a certain request arrives."""

from tests.support.embedding_server import FakeEmbeddingServer, Mode


class ChangesAfter(list[list[str]]):
    """Replaces the request log of the server: after this many requests the server changes its mode."""

    def __init__(self, server: FakeEmbeddingServer, requests: int, mode: Mode) -> None:
        super().__init__()
        self._server = server
        self._requests = requests
        self._mode: Mode = mode

    def append(self, texts: list[str]) -> None:
        super().append(texts)
        if len(self) > self._requests:
            self._server.mode = self._mode


class Refuses(list[list[str]]):
    """Replaces the request log of the server: requests that contain a text get vectors of zeros."""

    def __init__(self, server: FakeEmbeddingServer, text: str) -> None:
        super().__init__()
        self._server = server
        self._text = text

    def append(self, texts: list[str]) -> None:
        super().append(texts)
        self._server.mode = "zeros" if any(self._text in text for text in texts) else "ok"
