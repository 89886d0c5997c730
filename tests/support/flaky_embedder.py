"""Ways to have a fake embedding server change by itself, with a certain request."""

from tests.support.embedding_server import FakeEmbeddingServer, Mode


class ChangesAfter(list[list[str]]):
    """A request log to put in place of the server's: after so many requests the server is in another mode."""

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
    """A request log to put in place of the server's: requests that hold a certain text get no vector of use."""

    def __init__(self, server: FakeEmbeddingServer, text: str) -> None:
        super().__init__()
        self._server = server
        self._text = text

    def append(self, texts: list[str]) -> None:
        super().append(texts)
        self._server.mode = "zeros" if any(self._text in text for text in texts) else "ok"
