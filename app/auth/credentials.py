"""What a request presents to say who calls."""

from typing import NamedTuple

from app.auth.identity import Identity


class Credentials(NamedTuple):
    subject: bytes | Identity
    """The digest of an API key; or a person, with a verified token or a session of the console."""
    user_id: str | None
    """The user that a service key or an administrator acts for."""
