"""Where we may connect on behalf of users: public addresses over https, and the operator's own list. Nowhere else.

A URL is taken only in one plain spelling, so that no two readers of it can see two hosts. A name is resolved once, each
of its addresses is looked at, and the connection is made to such an address, never to the name again.
"""

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import httpx2

from app.errors import ServerUnreachable, UrlNotAllowed

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?(?:[/?][!$-\[\]-~]*)?",
    re.IGNORECASE | re.ASCII,  # or the Kelvin sign would pass for a k, and a long s for an s
)
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_LOOKUPS_AT_ONCE = 8
_LOOKUP_S = 5.0


def _networks(text: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(ipaddress.ip_network(network) for network in text.split())


# `is_global` alone is no filter: depending on Python's version it lets through multicast, relays into IPv4 and the
# metadata services that some clouds keep at public addresses.
_PUBLIC_6 = ipaddress.IPv6Network("2000::/3")
_CLOSED = _networks(
    """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
    192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4
    168.63.129.16/32
    2001::/23 2001:db8::/32 2002::/16 3fff::/20
    """
)


@dataclass(frozen=True)
class Target:
    """What a URL leads to, as far as connecting goes."""

    scheme: str
    host: str
    port: int
    listed: bool
    """The operator named exactly this host and port: any address, and plain http, will do."""

    @property
    def is_literal(self) -> bool:
        return _literal(self.host) is not None


class Guard:
    def __init__(self, allowed: Iterable[str], resolve: Resolve | None = None) -> None:
        self._allowed = frozenset(entry.lower() for entry in allowed)
        # Threads of its own: look-ups that hang must not hold up whatever else works in threads.
        self._lookups = ThreadPoolExecutor(_LOOKUPS_AT_ONCE, thread_name_prefix="resolve")
        self._resolve = resolve or self._system_resolve
        # Reading the certificates takes tens of milliseconds: once is enough.
        self.tls: ssl.SSLContext = httpx2.create_ssl_context(trust_env=False)

    def target(self, url: str) -> Target:
        """What the spelling alone tells. Raises `UrlNotAllowed`."""
        match = _URL.fullmatch(url)
        if match is None:
            raise UrlNotAllowed(
                "write the URL plainly: https://host:port/path, in ASCII, with neither credentials nor a fragment"
            )
        scheme, host = match["scheme"].lower(), _plain_host(match["host"].lower())
        port = int(match["port"] or _DEFAULT_PORTS[scheme])
        if not 0 < port < 65_536:
            raise UrlNotAllowed("the URL's port does not exist")
        target = Target(scheme, host, port, listed=host_and_port(host, port) in self._allowed)
        if not target.listed:
            _check_stranger(target)
        return target

    async def addresses(self, target: Target) -> Sequence[str]:
        """Where the target is, resolved now. Raises `UrlNotAllowed` where any of it is not public."""
        if target.is_literal:
            return [target.host]
        try:
            async with asyncio.timeout(_LOOKUP_S):
                found = await self._resolve(target.host, target.port)
        except (OSError, TimeoutError, UnicodeError) as error:
            raise ServerUnreachable("dns", f"the name {target.host} cannot be resolved") from error
        if not found:
            raise ServerUnreachable("dns", f"the name {target.host} has no address")
        for address in found:
            self.check_address(target, address)
        return found

    def check_address(self, target: Target, address: str) -> None:
        if not target.listed and not is_public(address):
            raise UrlNotAllowed(f"{target.host} leads to an address that is not public")

    async def check(self, url: str) -> None:
        """Before a URL is stored. A name that nobody knows yet is no offence: it is looked up again to connect."""
        target = self.target(url)
        with suppress(ServerUnreachable):
            await self.addresses(target)

    async def _system_resolve(self, host: str, port: int) -> Sequence[str]:
        look_up = asyncio.get_running_loop().run_in_executor
        found = await look_up(self._lookups, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))

    def close(self) -> None:
        self._lookups.shutdown(wait=False, cancel_futures=True)


def host_and_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_public(address: str) -> bool:
    ip = _literal(address)
    if ip is None or not ip.is_global or ip.is_multicast or ip.is_reserved:
        return False
    return not any(ip in network for network in _CLOSED) and (ip.version == 4 or ip in _PUBLIC_6)


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _plain_host(written: str) -> str:
    """Without brackets. Raises `UrlNotAllowed` where two readers could take it for two things."""
    host = written.strip("[]")
    ip, labels = _literal(host), host.split(".")
    bracketed = host != written
    if ip is not None and bracketed == (ip.version == 6):
        return host
    # What ends in a number is an IPv4 address to most readers, whether octal, hexadecimal, short or in one piece.
    if bracketed or _NUMBER.fullmatch(labels[-1]):
        raise UrlNotAllowed("write an IP address in its usual form")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise UrlNotAllowed("that is not the name of a host")
    return host


def _check_stranger(target: Target) -> None:
    if target.scheme != "https":
        raise UrlNotAllowed(f"only https:// is allowed{_unless_listed(target)}")
    if target.is_literal:
        if not is_public(target.host):
            raise UrlNotAllowed(f"{target.host} is not a public address{_unless_listed(target)}")
    elif "." not in target.host or target.host.endswith(".localhost"):
        raise UrlNotAllowed(f"{target.host} is not a public name{_unless_listed(target)}")


def _unless_listed(target: Target) -> str:
    place = host_and_port(target.host, target.port)
    return f" (unless the operator lists exactly {place} in TOOLSCOUT_OUTBOUND_ALLOW)"
