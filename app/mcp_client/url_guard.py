"""Decide which URLs of users' servers may be connected to: public addresses over https, and the operator's allow list.

Only one plain form of a URL is accepted, so that two parsers cannot see two different hosts. A host name is resolved
once, each of its addresses is checked, and the connection is made to one of these addresses and never to the name.
"""

import ipaddress
import re
import ssl
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import httpx2

from app.errors import ServerUnreachable, UrlNotAllowed
from app.mcp_client.resolver import Resolve, Resolver

_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?(?:[/?][!$-\[\]-~]*)?",
    re.IGNORECASE | re.ASCII,  # without ASCII the Kelvin sign would match k, and the long s would match s
)
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def _parse_networks(text: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(ipaddress.ip_network(network) for network in text.split())


# `is_global` alone is not enough: depending on the Python version it accepts multicast addresses, relays into IPv4 and
# the public addresses at which some clouds run their metadata services.
_PUBLIC_IPV6 = ipaddress.IPv6Network("2000::/3")
_BLOCKED_NETWORKS = _parse_networks(
    """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
    192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4
    168.63.129.16/32
    2001::/23 2001:db8::/32 2002::/16 3fff::/20
    """
)


@dataclass(frozen=True)
class Target:
    """The scheme, host and port of a URL."""

    scheme: str
    host: str
    port: int
    listed: bool
    """The operator allows exactly this host and port: any address and plain http are accepted."""

    @property
    def is_ip_address(self) -> bool:
        return _parse_ip(self.host) is not None


class Guard:
    """`allowed` lists `host:port` entries that may be connected to although they are not public."""

    def __init__(self, allowed: Iterable[str], resolve: Resolve | None = None) -> None:
        self.allow(allowed)
        self._resolver = Resolver(resolve)
        # Loading the certificates takes tens of milliseconds, so it is done once.
        self.tls: ssl.SSLContext = httpx2.create_ssl_context(trust_env=False)

    def allow(self, allowed: Iterable[str]) -> None:
        """Replace the list of `host:port` entries. Each new connection is checked against it."""
        self._allowed = frozenset(entry.lower() for entry in allowed)

    def is_listed(self, url: str) -> bool:
        try:
            return self.parse_url(url).listed
        except UrlNotAllowed:
            return False

    def parse_url(self, url: str) -> Target:
        """Check the URL without resolving its host. Raise `UrlNotAllowed`."""
        match = _URL.fullmatch(url)
        if match is None:
            raise UrlNotAllowed(
                "write the URL as https://host:port/path, in ASCII, without credentials and without a fragment"
            )
        scheme, host = match["scheme"].lower(), _normalize_host(match["host"].lower())
        port = int(match["port"] or _DEFAULT_PORTS[scheme])
        if not 0 < port < 65_536:
            raise UrlNotAllowed("the URL's port must be between 1 and 65535")
        target = Target(scheme, host, port, listed=join_host_port(host, port) in self._allowed)
        if not target.listed:
            _check_unlisted(target)
        return target

    async def resolve(self, target: Target, user_id: str) -> Sequence[str]:
        """Return the target's addresses. Raise `UrlNotAllowed` if one of them is not public.

        `user_id`: the user whose server it is, whose share of the look-ups it takes.
        """
        if target.is_ip_address:
            return [target.host]
        addresses = await self._resolver.resolve(user_id, target.host, target.port)
        for address in addresses:
            self.check_address(target, address)
        return addresses

    def check_address(self, target: Target, address: str) -> None:
        if not target.listed and not is_public(address):
            raise UrlNotAllowed(f"{target.host} resolves to an address that is not public")

    async def check(self, url: str, user_id: str) -> None:
        """Check a URL before it is stored. A host that cannot be resolved yet passes: connecting resolves it again."""
        target = self.parse_url(url)
        with suppress(ServerUnreachable):
            await self.resolve(target, user_id)

    def close(self) -> None:
        self._resolver.close()


def join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_public(address: str) -> bool:
    ip = _parse_ip(address)
    if ip is None or not ip.is_global or ip.is_multicast or ip.is_reserved:
        return False
    return not any(ip in network for network in _BLOCKED_NETWORKS) and (ip.version == 4 or ip in _PUBLIC_IPV6)


def _parse_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _normalize_host(text: str) -> str:
    """Remove the brackets of an IPv6 address. Raise `UrlNotAllowed` for a form that parsers read differently."""
    host = text.strip("[]")
    ip, labels = _parse_ip(host), host.split(".")
    bracketed = host != text
    if ip is not None and bracketed == (ip.version == 6):
        return host
    # Most parsers read a host that ends in a number as an IPv4 address: octal, hexadecimal, shortened or as one number.
    if bracketed or _NUMERIC_LABEL.fullmatch(labels[-1]):
        raise UrlNotAllowed("write an IP address in its usual form")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise UrlNotAllowed("the URL's host name is not valid")
    return host


def _check_unlisted(target: Target) -> None:
    if target.scheme != "https":
        raise UrlNotAllowed(f"only https:// is allowed{_allow_list_hint(target)}")
    if target.is_ip_address:
        if not is_public(target.host):
            raise UrlNotAllowed(f"{target.host} is not a public address{_allow_list_hint(target)}")
    elif "." not in target.host or target.host.endswith(".localhost"):
        raise UrlNotAllowed(f"{target.host} is not a public host name{_allow_list_hint(target)}")


def _allow_list_hint(target: Target) -> str:
    entry = join_host_port(target.host, target.port)
    return f" (unless the operator lists exactly {entry} in TOOLSCOUT_OUTBOUND_ALLOW)"
