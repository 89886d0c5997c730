"""How Toolscout presents itself to the sign-ins of servers: its addresses, its clients, where browsers may go."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from app.connections.oauth import ClientIdentity
from app.errors import InvalidInput

CALLBACK_PATH = "/oauth/callback"
METADATA_PATH = "/oauth/client-metadata.json"

_NO_PUBLIC_URL = "sign-in to servers needs TOOLSCOUT_PUBLIC_URL, the URL under which browsers reach Toolscout"


@dataclass(frozen=True)
class ConnectorConfig:
    base_url: str | None
    """The URL under which browsers reach us."""
    redirect_origins: frozenset[str]
    operator_clients: Mapping[str, Mapping[str, str]]

    @property
    def identity(self) -> ClientIdentity:
        if self.base_url is None:
            raise InvalidInput(_NO_PUBLIC_URL)
        is_public = self.base_url.startswith("https://")
        metadata_url = f"{self.base_url}{METADATA_PATH}" if is_public else None
        return ClientIdentity(f"{self.base_url}{CALLBACK_PATH}", metadata_url, self.operator_clients)

    def check_redirect(self, url: str | None) -> None:
        if url is None:
            return
        origin = get_origin(url)
        own = None if self.base_url is None else get_origin(self.base_url)
        if origin is None or (origin != own and origin not in self.redirect_origins):
            raise InvalidInput(
                "`redirect_url` must be an http(s) URL of an origin that the operator lists in "
                "TOOLSCOUT_REDIRECT_ORIGINS"
            )


def get_origin(url: str) -> str | None:
    """Return scheme, host and port in one form; None for what is no http(s) URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        return None
    is_default = port in (None, {"http": 80, "https": 443}[parts.scheme])
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" if is_default else f"{parts.scheme}://{host}:{port}"
