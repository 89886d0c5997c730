"""oidc-provider from npm as the authorization server of a test, and a person who signs in without a browser.

The Node.js that Playwright brings runs it: oidc-provider needs version 22, and Debian 12 has 18.
"""

import base64
import hashlib
import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx
from playwright._impl._driver import compute_driver_executable

from tests.support.paths import ROOT

Json = dict[str, Any]

ACCOUNTS = {
    "ada": {"email": "ada@example.com", "email_verified": True, "groups": ["staff"]},
    "bob": {"email": "bob@example.com", "email_verified": True, "groups": []},
    "root": {"email": "root@example.com", "email_verified": True, "groups": ["staff", "operators"]},
}
RESOURCE_SERVER = {"client_id": "resource-server", "client_secret": "a-secret-of-the-resource-server"}
"""The client with which a protected server asks whether an opaque token is valid."""
_NOWHERE = "http://127.0.0.1:9/callback"
_SCRIPT = ROOT / "tests/third_party/oidc_provider.mjs"
_FORM = re.compile(r'<form[^>]*action="([^"]+)".*?name="prompt" value="(\w+)"', re.DOTALL)


@dataclass(frozen=True)
class OidcProvider:
    url: str

    @property
    def address(self) -> str:
        """The host and port."""
        return urlsplit(self.url).netloc

    def change(self, **options: Any) -> None:
        """Change options of the script, such as `accessTokenTtl`, or members of the `metadata`."""
        self._control("options", options)

    def reset(self) -> None:
        """Undo the changes and faults."""
        self._control("reset")
        self._control("faults", [])

    def rotate_keys(self) -> None:
        """Replace the signing keys: what the old ones have signed can no longer be verified."""
        self._control("keys")

    def revoke_grants(self) -> None:
        """Revoke everything that was granted, as an administrator of the provider does."""
        self._control("revocations")

    @contextmanager
    def failing(self, *paths: str, **answer: Any) -> Iterator[None]:
        """Answer on these paths with `status`, `body`, `headers`; without a status never. `times`: then as usual."""
        self._control("faults", [{"path": path, **answer} for path in paths])
        try:
            yield
        finally:
            self._control("faults", [])

    def register(self, redirect_url: str) -> Json:
        """Register a client by dynamic registration, without a restriction of its scopes."""
        registered: Json = httpx.post(f"{self.url}/reg", json={"redirect_uris": [redirect_url]}).json()
        return registered

    def refresh(self, client: tuple[str, str], refresh_token: str, resource: str) -> httpx.Response:
        """Ask for new tokens, as a confidential client does."""
        body = {"grant_type": "refresh_token", "refresh_token": refresh_token, "resource": resource}
        return httpx.post(f"{self.url}/token", data=body, auth=httpx.BasicAuth(*client))

    def issue_tokens(self, account: str, resource: str, scope: str = "openid tools:read") -> Json:
        """Sign in as a new client does, and return the answer of the token endpoint."""
        client, verifier = self.register(_NOWHERE), "v" * 43
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        query = {"client_id": client["client_id"], "response_type": "code", "scope": scope, "resource": resource}
        query |= {"redirect_uri": _NOWHERE, "code_challenge": challenge, "code_challenge_method": "S256"}
        callback = Person(account).authorize(str(httpx.URL(f"{self.url}/auth", params=query)))
        body = {"grant_type": "authorization_code", "code": httpx.URL(callback).params["code"], "resource": resource}
        body |= {"redirect_uri": _NOWHERE, "code_verifier": verifier}
        basic = httpx.BasicAuth(client["client_id"], client["client_secret"])
        answer = httpx.post(f"{self.url}/token", data=body, auth=basic)
        assert answer.status_code == 200, answer.text
        tokens: Json = answer.json()
        return tokens

    @property
    def requests(self) -> list[Json]:
        recorded: list[Json] = httpx.get(f"{self.url}/control/requests").json()
        return recorded

    def find_requests(self, path: str, **params: str) -> list[Json]:
        """Return the requests for a path with these parameters, oldest first."""
        return [
            each
            for each in self.requests
            if each["path"] == path and params.items() <= (each.get("params") or {}).items()
        ]

    def find_secrets(self) -> set[str]:
        """Return every token, code, verifier and client secret that was issued or received."""
        names = ("access_token", "refresh_token", "id_token", "code", "code_verifier", "client_secret")
        found: set[str] = set()
        for each in self.requests:
            redirect = parse_qs(urlsplit(each.get("location") or "").query)
            values = [*(each.get("params") or {}).items(), *(each.get("body") or {}).items()]
            found |= {value for name, value in values if name in names and isinstance(value, str)}
            found |= set(redirect.get("code", ()))
        return found

    def _control(self, name: str, body: Any = None) -> None:
        httpx.post(f"{self.url}/control/{name}", content=json.dumps(body)).raise_for_status()


@contextmanager
def running_oidc_provider(**options: Any) -> Iterator[OidcProvider]:
    """Run the provider with the options of the script on a free port."""
    clients = [{**RESOURCE_SERVER, "redirect_uris": [], "response_types": [], "grant_types": []}]
    options = {"accounts": ACCOUNTS, **options, "clients": clients + options.get("clients", [])}
    node, _ = compute_driver_executable()
    command = [node, str(_SCRIPT), json.dumps(options)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, b"")
        url = next((line.decode().strip() for line in lines if line.startswith(b"http://")), None)
        assert url, "oidc-provider did not start"
        drain = threading.Thread(target=process.stdout.read, daemon=True)
        drain.start()
        try:
            yield OidcProvider(url)
        finally:
            process.terminate()
            drain.join()


class Person:
    """Signs in and consents on the pages of the provider, and keeps its cookies."""

    def __init__(self, account: str) -> None:
        self.account = account
        self._cookies = httpx.Cookies()

    def authorize(self, authorization_url: str) -> str:
        """Sign in where asked, consent, and return the address to which the provider sends the browser."""
        return self._follow(authorization_url, self._submit)

    def deny(self, authorization_url: str) -> str:
        """Refuse, and return the address to which the provider sends the browser."""
        return self._follow(authorization_url, lambda http, page: http.get(f"{page.url}/abort"))

    def _follow(self, authorization_url: str, decide: Callable[[httpx.Client, httpx.Response], httpx.Response]) -> str:
        origin = urlsplit(authorization_url).netloc
        with httpx.Client(cookies=self._cookies, timeout=30) as http:
            response = http.get(authorization_url)
            for _ in range(20):
                if not response.is_redirect:
                    response = decide(http, response)
                    continue
                location = urljoin(str(response.url), response.headers["Location"])
                if urlsplit(location).netloc != origin:
                    self._cookies = http.cookies
                    return location
                response = http.get(location)
        raise AssertionError(f"no redirect to the client after {response.url}: {response.text}")

    def _submit(self, http: httpx.Client, page: httpx.Response) -> httpx.Response:
        form = _FORM.search(page.text)
        assert form, page.text
        fields = {"prompt": form[2], "login": self.account, "password": "any"}
        return http.post(urljoin(str(page.url), form[1]), data=fields)
