"""What the fake rejects, as the real APIs do."""


class InvalidRequest(Exception):
    """Answered with status 400. `code` is the machine-readable reason, where the API has one."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


def reject_if(condition: bool, message: str, code: str | None = None) -> None:
    if condition:
        raise InvalidRequest(message, code)
