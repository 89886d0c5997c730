"""Metadata and keys of the identity provider: fetched once, refreshed, rotated, and kept while it is down."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from app.auth.oidc import provider as provider_module
from app.auth.oidc.provider import LIFETIME_S, MAX_STALE_S, PAUSE_S, IdentityProvider
from app.errors import IdentityProviderDown
from tests.support.checks import assert_problem
from tests.support.clients import open_client
from tests.support.factories import ADMIN_KEY, OpenService
from tests.support.identity_provider import FakeIdentityProvider, make_key, running_identity_provider
from tests.support.worker_steps import until

DISCOVERY, KEYS = "/realm/.well-known/openid-configuration", "/realm/keys"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def fake() -> Iterator[FakeIdentityProvider]:
    with running_identity_provider() as running:
        yield running


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def provider(fake: FakeIdentityProvider, clock: Clock) -> AsyncIterator[IdentityProvider]:
    made = IdentityProvider(fake.issuer, clock)
    yield made
    await made.aclose()


async def find(provider: IdentityProvider, kid: str | None = "first", algorithm: str = "RS256") -> bool:
    return await provider.find_key(kid, algorithm) is not None


async def test_many_tokens_at_once_cause_one_fetch(fake: FakeIdentityProvider, provider: IdentityProvider) -> None:
    assert all(await asyncio.gather(*(find(provider) for _ in range(50))))
    assert await find(provider)
    assert fake.requests == [DISCOVERY, KEYS]


async def test_a_new_key_is_found_without_a_restart(
    fake: FakeIdentityProvider, provider: IdentityProvider, clock: Clock
) -> None:
    assert await find(provider)
    fake.keys = [make_key("second"), *fake.keys]
    clock.now += PAUSE_S
    assert await find(provider, "second")
    assert await find(provider, "first")
    assert len(fake.requests) == 4


async def test_invented_keys_cause_no_flood_at_the_provider(
    fake: FakeIdentityProvider, provider: IdentityProvider, clock: Clock
) -> None:
    assert await find(provider)
    clock.now += PAUSE_S
    found = await asyncio.gather(*(find(provider, f"invented-{number}") for number in range(100)))
    assert not any(found)
    assert len(fake.requests) == 4
    clock.now += PAUSE_S - 1
    assert not await find(provider, "invented again")
    assert len(fake.requests) == 4
    clock.now += 1
    assert not await find(provider, "invented again")
    assert len(fake.requests) == 6


async def test_a_known_key_of_another_type_causes_no_fetch(
    fake: FakeIdentityProvider, provider: IdentityProvider, clock: Clock
) -> None:
    assert await find(provider)
    clock.now += PAUSE_S
    assert not await find(provider, "first", "ES256")
    assert len(fake.requests) == 2


async def test_a_token_without_a_key_id_must_leave_no_choice(
    fake: FakeIdentityProvider, provider: IdentityProvider, clock: Clock
) -> None:
    fake.keys = [make_key("first"), make_key("ec", "ES256")]
    assert await find(provider, None, "RS256")
    fake.keys = [make_key("first"), make_key("second")]
    clock.now += LIFETIME_S + 1
    assert await find(provider, None, "RS256")  # the old keys, while new ones are fetched

    async def is_refused() -> bool:
        return not await find(provider, None, "RS256")

    await until(is_refused)


async def test_a_removed_key_ends_after_the_lifetime_and_nobody_waits_for_the_fetch(
    fake: FakeIdentityProvider, provider: IdentityProvider, clock: Clock
) -> None:
    assert await find(provider)
    fake.keys = [make_key("second")]
    clock.now += LIFETIME_S
    assert await find(provider)
    assert len(fake.requests) == 2
    fake.gate.clear()
    clock.now += 1
    assert await find(provider)
    fake.gate.set()

    async def is_gone() -> bool:
        return not await find(provider)

    await until(is_gone)
    assert len(fake.requests) == 4


async def test_known_keys_are_used_while_the_provider_is_down_but_not_for_ever(
    fake: FakeIdentityProvider, provider: IdentityProvider, clock: Clock
) -> None:
    assert await find(provider)
    fake.status = 500
    for _ in range(3):
        clock.now += MAX_STALE_S / 4
        assert await find(provider)
        assert not await find(provider, "unknown")
    assert "answered with status 500; its last known keys are used" in str(provider.warning)
    clock.now += MAX_STALE_S
    with pytest.raises(IdentityProviderDown):
        await find(provider)
    fake.status = 200
    clock.now += PAUSE_S
    assert await find(provider)
    assert provider.warning is None


async def test_a_provider_that_hangs_stops_nobody_for_long(
    fake: FakeIdentityProvider, provider: IdentityProvider, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_module, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(provider_module, "_MAX_WAITING", 3)
    fake.gate.clear()
    outcomes = await asyncio.gather(*(find(provider) for _ in range(10)), return_exceptions=True)
    reasons = [outcome.reason for outcome in outcomes if isinstance(outcome, IdentityProviderDown)]
    assert len(reasons) == 10
    assert sum("did not answer within" in reason for reason in reasons) == 3
    assert sum("too many requests wait" in reason for reason in reasons) == 7
    with pytest.raises(IdentityProviderDown) as refused:
        await find(provider)
    assert refused.value.headers == {"Retry-After": str(int(PAUSE_S))}
    assert len(fake.requests) <= 1
    fake.gate.set()
    clock.now += PAUSE_S
    monkeypatch.setattr(provider_module, "TIMEOUT_S", 30.0)
    assert await find(provider)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"issuer": "https://other.example.com"}, "names the issuer 'https://other.example.com'"),
        ({"jwks_uri": None}, "has no jwks_uri"),
        ({"jwks_uri": "file:///etc/passwd"}, "no usable jwks_uri"),
        ({"jwks_uri": 7}, "no usable jwks_uri"),
        ({"token_endpoint": "http://user:password@127.0.0.1/"}, "no usable token_endpoint"),
        ({"token_endpoint": "http://[broken/"}, "no usable token_endpoint"),
        ({"jwks_uri": "http://127.0.0.1:1/keys"}, "cannot be reached"),
    ],
)
async def test_metadata_that_cannot_be_used_is_refused(
    fake: FakeIdentityProvider, provider: IdentityProvider, clock: Clock, metadata: dict[str, object], words: str
) -> None:
    fake.metadata = metadata
    with pytest.raises(IdentityProviderDown) as refused:
        await find(provider)
    assert words in refused.value.reason
    fake.metadata = {}
    clock.now += PAUSE_S
    assert await find(provider)


@pytest.mark.parametrize("status", [301, 307, 404, 503])
async def test_a_redirect_or_an_error_is_not_followed(
    fake: FakeIdentityProvider, provider: IdentityProvider, clock: Clock, status: int
) -> None:
    fake.status = status
    with pytest.raises(IdentityProviderDown):
        await find(provider)
    assert fake.requests == [DISCOVERY]
    fake.status = 200
    clock.now += PAUSE_S
    assert await find(provider)


async def test_a_set_without_usable_keys_does_not_replace_the_known_ones(
    fake: FakeIdentityProvider, provider: IdentityProvider, clock: Clock
) -> None:
    assert await find(provider)
    fake.keys = []
    clock.now += PAUSE_S
    assert not await find(provider, "unknown")
    assert await find(provider)
    assert "lists no key that can be used" in str(provider.warning)


async def test_without_keys_a_token_is_503_and_a_key_still_works(
    open_service: OpenService, fake: FakeIdentityProvider
) -> None:
    """401 would make clients throw their token away."""
    fake.status = 500
    async with open_service(**fake.settings()) as service, open_client(service) as http:
        answer = await http.get("/users", headers={"Authorization": f"Bearer {fake.make_token()}"})
        assert_problem(answer, 503, "unavailable")
        assert "retry-after" in answer.headers
        assert (await http.get("/users", headers={"Authorization": f"Bearer {ADMIN_KEY}"})).status_code == 200
        ready: httpx.Response = await http.get("/readyz")
        assert [warning for warning in ready.json()["warnings"] if "TOOLSCOUT_OIDC_ISSUER" in warning]
