"""Decide by its `Host` and `Origin` headers whether a request is meant for this service.

DNS rebinding: a page that points its own domain name at our address is same-origin to the browser. The attack needs a
name in public DNS, so an IP address, a name without a dot and a name below a private domain are safe.
"""

import re
from collections.abc import Collection
from ipaddress import ip_address

_PRIVATE_DOMAINS = (".localhost", ".local", ".internal")
_HOST = re.compile(r"(\[(?P<address>[0-9a-f.:]+)\]|(?P<name>[^\s@/?#\\:\[\]]+))(:[0-9]{0,5})?")


def is_own_host(host: str, own: Collection[str]) -> bool:
    """Check a `Host` header. `own` holds names in lower case, with or without a port."""
    name = _parse_hostname(host)
    return name is not None and (_is_outside_public_dns(name) or name in own or host.lower() in own)


def is_own_origin(origin: str, host: str, own: Collection[str]) -> bool:
    """Check an `Origin` header: our own page or a listed origin. Either scheme is accepted, as a proxy may end TLS."""
    return origin.lower() in own or origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")


def _parse_hostname(host: str) -> str | None:
    match = _HOST.fullmatch(host.lower())
    return None if match is None else match["address"] or match["name"]


def _is_outside_public_dns(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(_PRIVATE_DOMAINS)
    return True
