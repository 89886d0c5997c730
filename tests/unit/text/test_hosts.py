"""Which `Host` and `Origin` headers are accepted: none that a page on the web could forge."""

import pytest

from app.text.hosts import is_own_host, is_own_origin

OWN_HOSTS = ["tools.example.com", "tools.example.org:8443"]
OWN_ORIGINS = ["https://app.example.com", "http://localhost:3000"]


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:8000",
        "192.168.1.7:8000",
        "[::1]",
        "[::1]:8000",
        "[2001:DB8::1]:8000",
        "localhost",
        "localhost:8000",
        "LOCALHOST:8000",
        "toolscout",
        "toolscout:8000",
        "a.localhost",
        "my-mac.local:8000",
        "tools.team.internal",
        "A.b.LocalHost:8000",
    ],
)
def test_an_address_or_a_name_outside_public_dns_is_always_our_own(host: str) -> None:
    assert is_own_host(host, ())
    assert is_own_host(host, OWN_HOSTS)


@pytest.mark.parametrize(
    "host", ["tools.example.com", "tools.example.com:8000", "TOOLS.Example.com:443", "tools.example.org:8443"]
)
def test_a_public_name_is_our_own_if_it_is_listed(host: str) -> None:
    assert is_own_host(host, OWN_HOSTS)
    assert not is_own_host(host, ())


@pytest.mark.parametrize(
    "host",
    [
        "example.com",
        "evil.example.com:8000",
        "a.tools.example.com",
        "tools.example.com.evil.com",
        "tools.example.org",
        "tools.example.org:8000",
        "127.0.0.1.evil.com",
        "localhost.evil.com",
        "evil-localhost.com",
        "localhost.",
        "1.2.3",
    ],
)
def test_an_unlisted_public_name_is_not_our_own(host: str) -> None:
    assert not is_own_host(host, OWN_HOSTS)


@pytest.mark.parametrize(
    "host",
    [
        "",
        ":8000",
        "localhost@evil.com",
        "evil.com@localhost",
        "a:b@localhost",
        "@localhost",
        "@tools.example.com",
        "localhost/evil.com",
        "localhost?evil.com",
        "localhost#evil.com",
        "localhost:port",
        "localhost:80:90",
        "localhost\\@evil.com",
        "local host",
        "localhost\n",
        "local\thost",
        "http://localhost",
        "::1",
        "[::1",
        "::1]",
        "[::1]evil.com",
        "[evil.com]",
    ],
)
def test_a_malformed_host_is_not_our_own(host: str) -> None:
    assert not is_own_host(host, OWN_HOSTS)


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1:8000", "[::1]:8000", "tools.example.com"])
def test_our_own_origin_is_allowed_with_either_scheme(host: str) -> None:
    for origin in (f"http://{host}", f"https://{host}", f"HTTPS://{host.upper()}"):
        assert is_own_origin(origin, host, ())
        assert is_own_origin(origin, host.upper(), ())


@pytest.mark.parametrize("origin", ["https://app.example.com", "HTTPS://App.Example.com", "http://localhost:3000"])
def test_a_listed_origin_is_allowed(origin: str) -> None:
    assert is_own_origin(origin, "localhost:8000", OWN_ORIGINS)
    assert not is_own_origin(origin, "localhost:8000", ())


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "null",
        "http://evil.com",
        "http://localhost",
        "http://localhost:8001",
        "http://127.0.0.1:8000",
        "http://app.example.com",
        "https://app.example.com:8443",
        "https://app.example.com.evil.com",
        "https://evil.com/https://app.example.com",
        "http://localhost:8000@evil.com",
        "http://evil.com@localhost:8000",
        "http://localhost:8000.evil.com",
        "ftp://localhost:8000",
        "file://localhost:8000",
        "//localhost:8000",
        "localhost:8000",
        "http://[",
        "http://localhost:port",
    ],
)
def test_any_other_origin_is_rejected(origin: str) -> None:
    assert not is_own_origin(origin, "localhost:8000", OWN_ORIGINS)
    assert not is_own_origin(origin, "", OWN_ORIGINS)
