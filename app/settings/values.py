"""Types of values that several settings share."""

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})

_BASE_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?")
_ORIGIN = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?/?")


def split_list(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def is_base_url(text: str) -> bool:
    """Return whether this is an http(s) URL without user, query and fragment."""
    return _BASE_URL.fullmatch(text) is not None


def _check_base_url(value: str) -> str:
    """Refuse what cannot be requested. Otherwise every request to it would fail."""
    if not is_base_url(value):
        raise ValueError("must be a base URL without user, query or fragment, such as https://tools.example.com")
    urlsplit(value).port  # noqa: B018 raises ValueError beyond 65535
    return value


def _check_origins(value: str) -> str:
    if invalid := [entry for entry in split_list(value) if not _ORIGIN.fullmatch(entry)]:
        raise ValueError(f"{invalid[0]!r} is not an origin, such as https://chat.example.com")
    return value


BaseUrl = Annotated[str, AfterValidator(_check_base_url)]
Origins = Annotated[str, AfterValidator(_check_origins)]
"""Origins, comma-separated."""
