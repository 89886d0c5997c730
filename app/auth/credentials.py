"""What a request presents to say who calls."""

from typing import NamedTuple


class Credentials(NamedTuple):
    key_digest: bytes
    user_id: str | None
    """The user that a service or admin key acts for."""
