"""A terminal that keeps what is written to it."""

import io


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True
