"""Whether a request was meant for us, by its `Host` and `Origin`. Pure.

A page that leads its own name to our address (DNS rebinding) is, to the browser, of one origin with us. It needs a name
that the public can look up: an address is none, nor is a name without a dot.
"""

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit


def is_own_host(host: str, own: Collection[str]) -> bool:
    """`own` holds names, with or without a port, in lower case."""
    name = _name(host)
    return name is not None and (_needs_no_lookup(name) or name in own or host.lower() in own)


def is_own_origin(origin: str, host: str, own: Collection[str]) -> bool:
    """The page is our own, or of an origin that was named."""
    return origin.lower() in own or urlsplit(origin.lower()).netloc == host.lower()


def _name(host: str) -> str | None:
    try:
        parts = urlsplit(f"//{host}")
        return parts.hostname if parts.netloc == host and not parts.username else None
    except ValueError:
        return None


def _needs_no_lookup(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(".localhost")
    return True
