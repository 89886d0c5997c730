"""Whether a request was meant for us, by its `Host` and `Origin`. Pure.

A page that leads its own name to our address (DNS rebinding) is, to the browser, of one origin with us. It needs a name
that the public can look up: an address is none, nor is a name without a dot or below a domain that nobody can buy.
"""

import re
from collections.abc import Collection
from ipaddress import ip_address

_PRIVATE = (".localhost", ".local", ".internal")
_HOST = re.compile(r"(\[(?P<address>[0-9a-f.:]+)\]|(?P<name>[^\s@/?#\\:\[\]]+))(:[0-9]{0,5})?")


def is_own_host(host: str, own: Collection[str]) -> bool:
    """`own` holds names, with or without a port, in lower case."""
    name = _name(host)
    return name is not None and (_needs_no_lookup(name) or name in own or host.lower() in own)


def is_own_origin(origin: str, host: str, own: Collection[str]) -> bool:
    """The page is our own, or of an origin that was named. Behind a proxy nobody knows which scheme is ours."""
    return origin.lower() in own or origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")


def _name(host: str) -> str | None:
    matched = _HOST.fullmatch(host.lower())
    return None if matched is None else matched["address"] or matched["name"]


def _needs_no_lookup(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(_PRIVATE)
    return True
