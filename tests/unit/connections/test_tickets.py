"""Links that begin a sign-in: sealed, for one user and one server, and only for a while."""

import base64
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from app.connections import tickets
from app.connections.tickets import LINK_LIFETIME, Ticket, make_link, open_ticket
from app.crypto import Sealer, SecretOwner
from app.errors import InvalidInput

SEALER = Sealer(b"k" * 32)
TICKET = Ticket("alice", "server-1", "user:key-1")


def make_text(sealer: Sealer = SEALER) -> str:
    link = make_link(sealer, "https://tools.example.com", TICKET)
    [text] = parse_qs(urlsplit(link.authorization_url).query)["ticket"]
    return text


def test_a_ticket_opens_as_it_was_made() -> None:
    assert open_ticket(SEALER, make_text()) == TICKET


def test_a_link_is_below_the_public_url_names_nobody_and_says_when_it_expires() -> None:
    link = make_link(SEALER, "https://example.com/tools", TICKET)
    assert link.authorization_url.startswith("https://example.com/tools/oauth/start?ticket=")
    assert "alice" not in link.authorization_url
    assert timedelta(0) < link.expires_at - datetime.now(UTC) <= LINK_LIFETIME


def test_a_ticket_of_a_former_key_opens() -> None:
    assert open_ticket(Sealer(b"n" * 32, [b"k" * 32]), make_text()) == TICKET


@pytest.mark.parametrize("change", ["", "é", "x" * 5_000, "cut", "flipped", "foreign key", "other purpose"])
def test_anything_else_is_refused(change: str) -> None:
    text = make_text()
    sealed_for_another_purpose = SEALER.seal(b'["alice","server-1","x",99999999999]', SecretOwner("", "", "state"))
    changed = {
        "cut": text[:-4],
        "flipped": ("A" if text[0] != "A" else "B") + text[1:],
        "foreign key": make_text(Sealer(b"f" * 32)),
        "other purpose": base64.urlsafe_b64encode(sealed_for_another_purpose).decode(),
    }
    with pytest.raises(InvalidInput, match="not complete"):
        open_ticket(SEALER, changed.get(change, change))


def test_a_ticket_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(tickets, "LINK_LIFETIME", timedelta(seconds=-1))
        expired = make_text()
    with pytest.raises(InvalidInput, match="expired"):
        open_ticket(SEALER, expired)
    assert open_ticket(SEALER, make_text()) == TICKET
