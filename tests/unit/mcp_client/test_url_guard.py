"""Tests of the URL guard: which URLs and which addresses it allows."""

import asyncio
import ipaddress
import socket
import string
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import httpx2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.errors import ServerUnreachable, UrlNotAllowed
from app.mcp_client import resolver
from app.mcp_client.resolver import Resolve
from app.mcp_client.url_guard import Guard, Target, is_public
from tests.support.urls import FORBIDDEN_URLS

PUBLIC = """
    1.1.1.1 8.8.8.8 93.184.216.34 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.1
    169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0
    223.255.255.255 168.63.129.15 168.63.129.17
    2606:4700::1111 2001:4860:4860::8888 2a00:1450:4001:81b::200e 2400:cb00:2048:1::c629:d7a2 2001:200::1
""".split()

NOT_PUBLIC = """
    0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 100.127.255.255 127.0.0.1 127.255.255.254
    168.63.129.16 169.254.0.1 169.254.169.254 169.254.170.2 172.16.0.1 172.31.255.255 192.0.0.1 192.0.0.192 192.0.2.1
    192.88.99.1 192.168.0.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.250 240.0.0.1
    255.255.255.255
    :: ::1 ::2 ::127.0.0.1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:8.8.8.8 ::ffff:0:8.8.8.8 64:ff9b::7f00:1 64:ff9b::808:808
    64:ff9b:1::a00:1 100::1 2001:: 2001:0:4136:e378:8000:63bf:80ff:fffe 2001:10::1 2001:20::1 2001:db8::1 2002:7f00:1::
    2002:808:808:: 3fff::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 fec0::1 ff02::1 ff0e::1 4000::1 e000::1
""".split()

NOT_ADDRESSES = [
    "",
    "localhost",
    "8.8.8",
    "08.8.8.8",
    "134744072",
    "0x8080808",
    "8.8.8.8:443",
    "[2606:4700::1111]",
    "８.8.8.8",
]

ALLOWED_URLS = [
    ("https://example.com", "example.com", 443),
    ("https://example.com/mcp?team=1&x=@127.0.0.1", "example.com", 443),
    ("https://example.com?x=https://127.0.0.1", "example.com", 443),
    ("HTTPS://Example.COM:8443/MCP", "example.com", 8443),
    ("https://xn--exmple-cua.com/%7euser/", "xn--exmple-cua.com", 443),
    ("https://my_server.example-1.com:00443", "my_server.example-1.com", 443),
    ("https://1password.com", "1password.com", 443),
    ("https://127.0.0.1.example.com", "127.0.0.1.example.com", 443),
    ("https://8.8.8.8:65535/", "8.8.8.8", 65535),
    ("https://[2606:4700::1111]:1/", "2606:4700::1111", 1),
    ("https://[2606:4700::ABCD]", "2606:4700::abcd", 443),
]


async def fail_to_resolve(host: str, _port: int) -> Sequence[str]:
    raise OSError(f"{host} is not known here")


def resolve_to(*addresses: str) -> Resolve:
    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return addresses

    return resolve


@pytest.fixture(scope="module")
def guard() -> Iterator[Guard]:
    created = Guard([], fail_to_resolve)
    yield created
    created.close()


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_recognized(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", NOT_PUBLIC + NOT_ADDRESSES)
def test_a_private_or_reserved_address_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(("url", "host", "port"), ALLOWED_URLS)
def test_a_plain_public_url_is_allowed(guard: Guard, url: str, host: str, port: int) -> None:
    assert guard.parse_url(url) == Target("https", host, port, listed=False)


@pytest.mark.parametrize("url", FORBIDDEN_URLS)
def test_a_private_or_ambiguous_url_is_rejected(guard: Guard, url: str) -> None:
    with pytest.raises(UrlNotAllowed):
        guard.parse_url(url.replace("{port}", "8080"))


def test_there_are_at_least_150_distinct_forbidden_urls() -> None:
    assert len(set(FORBIDDEN_URLS)) == len(FORBIDDEN_URLS) >= 150


LISTED = ["127.0.0.1:8080", "Files.Internal:9000", "[::1]:8080", "localhost:3001"]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8080/mcp",
        "https://127.0.0.1:8080/mcp",
        "http://files.internal:9000",
        "HTTP://FILES.INTERNAL:9000/mcp",
        "http://[::1]:8080/",
        "http://localhost:3001",
    ],
)
def test_a_listed_host_and_port_is_allowed_over_plain_http(url: str) -> None:
    guard = Guard(LISTED, fail_to_resolve)
    assert guard.parse_url(url).listed
    guard.close()


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8081/mcp",
        "http://127.0.0.1/mcp",
        "http://127.0.0.2:8080/mcp",
        "http://127.1:8080/mcp",
        "http://2130706433:8080/mcp",
        "http://[::ffff:127.0.0.1]:8080/mcp",
        "http://user@127.0.0.1:8080/mcp",
        "http://files.internal:9001",
        "http://files.internal.:9000",
        "http://x.files.internal:9000",
        "http://[0::1]:8080/",
        "http://localhost:3002",
        "ftp://localhost:3001",
    ],
)
def test_urls_similar_to_a_listed_host_and_port_are_rejected(url: str) -> None:
    guard = Guard(LISTED, fail_to_resolve)
    with pytest.raises(UrlNotAllowed):
        guard.parse_url(url)
    guard.close()


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["10.0.0.1", "8.8.8.8"], ["2606:4700::1111", "::1"], ["nonsense"]],
    ids=str,
)
async def test_a_host_is_rejected_if_any_of_its_addresses_is_not_public(addresses: list[str]) -> None:
    guard = Guard(["inside.example:443"], resolve_to(*addresses))
    with pytest.raises(UrlNotAllowed, match="not public"):
        await guard.resolve(guard.parse_url("https://example.com"), "ann")
    with pytest.raises(UrlNotAllowed, match="not public"):
        await guard.check("https://example.com", "ann")
    assert await guard.resolve(guard.parse_url("https://inside.example"), "ann") == tuple(addresses)
    guard.close()


async def test_all_public_addresses_of_a_host_are_returned() -> None:
    guard = Guard([], resolve_to("8.8.8.8", "2606:4700::1111"))
    assert await guard.resolve(guard.parse_url("https://example.com"), "ann") == ("8.8.8.8", "2606:4700::1111")
    guard.close()


async def test_an_ip_address_is_never_resolved(guard: Guard) -> None:
    assert await guard.resolve(guard.parse_url("https://8.8.8.8"), "ann") == ["8.8.8.8"]
    assert await guard.resolve(guard.parse_url("https://[2606:4700::1111]"), "ann") == ["2606:4700::1111"]


async def hang(_host: str, _port: int) -> Sequence[str]:
    await asyncio.Event().wait()
    raise AssertionError


async def raise_unicode_error(host: str, _port: int) -> Sequence[str]:
    return [host.encode("ascii").decode("utf-16")]


@pytest.mark.parametrize(
    "resolve", [fail_to_resolve, hang, resolve_to(), raise_unicode_error], ids=lambda resolver: resolver.__name__
)
async def test_a_host_that_cannot_be_resolved_may_be_registered_but_not_connected_to(
    monkeypatch: pytest.MonkeyPatch, resolve: Resolve
) -> None:
    monkeypatch.setattr(resolver, "LOOKUP_TIMEOUT_S", 0.05)
    guard = Guard([], resolve)
    await guard.check("https://example.com", "ann")
    with pytest.raises(ServerUnreachable) as failure:
        await guard.resolve(guard.parse_url("https://example.com"), "ann")
    assert failure.value.cause == "dns"
    guard.close()


async def test_the_system_resolver_is_the_default() -> None:
    guard = Guard(["localhost:80"])
    found = await guard.resolve(guard.parse_url("http://localhost"), "ann")
    assert "127.0.0.1" in found
    assert len(set(found)) == len(found)
    guard.close()


LABELS = "example localhost 127 0 8 08 0x7f x1 a_b a-b xn--a 2130706433".split()
NAMES = st.builds("{}.{}".format, st.sampled_from(LABELS), st.sampled_from(["com", "COM", "a.example", "0x7f", "1"]))
NUMBERS = st.integers(2**24, 2**32 - 1).map(lambda number: str(ipaddress.IPv4Address(number)))
LONG_NUMBERS = st.integers(2**125, 2**126).map(lambda number: f"[{ipaddress.IPv6Address(number)}]")
HOSTS = "8.8.8.8 [2606:4700::ABCD] [2606:4700::8.8.8.8] [::ffff:8.8.8.8] 2606:4700::1 [8.8.8.8] [abc.def] 127.1".split()
PLAIN_URLS = st.builds(
    "{}://{}{}{}".format,
    st.sampled_from(["https", "HTTPS"]),
    NAMES | NUMBERS | LONG_NUMBERS | st.sampled_from(HOSTS),
    st.sampled_from(["", ":443", ":08080", ":65535"]),
    st.sampled_from(["", "/", "/mcp?x=1", "?x", "/%2f@127.0.0.1:1/..//"]),
)
ODD_PARTS = [
    *string.printable,
    *["user@", "user:password@", "//", "\\\\", "%31", "%2f", "%00", ":0", "0x", "\r\n", "localhost", "127.0.0.1"],
    *"\u212aſｅ１。．①ß\u200b\u00ad／＠：",
]


@st.composite
def odd_urls(draw: st.DrawFn) -> str:
    url: str = draw(PLAIN_URLS)
    position = draw(st.integers(0, len(url)))
    return f"{url[:position]}{draw(st.sampled_from(ODD_PARTS))}{url[position:]}"


@settings(max_examples=500)
@given(url=PLAIN_URLS | odd_urls())
@example("https://example.com/")
@example("https://8.8.8.8/")
def test_all_parsers_see_the_same_host_in_an_allowed_url(guard: Guard, url: str) -> None:
    try:
        target = guard.parse_url(url)
    except UrlNotAllowed:
        return
    read, split = httpx2.URL(url), urlsplit(url)
    assert target.host == read.raw_host.decode().lower() == split.hostname
    assert target.port == (read.port or 443) == (split.port or 443)
    assert target.scheme == read.scheme == split.scheme == "https"
    assert not read.userinfo
    assert split.username is None
    assert guard.parse_url(str(read)) == target, "the transport parses the request's URL again"
    if target.is_ip_address:
        assert is_public(target.host)
    else:
        assert not system_reads_ip_address(target.host)


def system_reads_ip_address(host: str) -> bool:
    try:
        socket.inet_aton(host)
    except OSError:
        return False
    return True
