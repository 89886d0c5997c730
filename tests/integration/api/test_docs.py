"""The API documentation at `/docs`: complete, and without a word from another host."""

import re
from urllib.parse import urljoin

import httpx
import pytest

from tests.support.checks import assert_problem


async def test_the_page_and_its_files_answer(client: httpx.AsyncClient) -> None:
    page = await client.get("/docs")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    files = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(files) == 4
    for file in files:
        answer = await client.get(urljoin("http://localhost/docs", file))
        assert answer.status_code == 200, file
        assert len(answer.content) > 100


@pytest.mark.parametrize("path", ["/docs", "/docs/static/docs.js"])
async def test_no_page_names_another_host(client: httpx.AsyncClient, path: str) -> None:
    assert "//" not in re.sub(r"^\s*//.*$", "", (await client.get(path)).text, flags=re.MULTILINE)


@pytest.mark.parametrize("path", ["/docs", "/docs/static/docs.html", "/docs/static/docs.js"])
async def test_the_policy_of_the_page_allows_this_host_alone(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    assert answer.status_code == 200
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "http" not in policy
    assert "*" not in policy


async def test_a_browser_downloads_the_script_once(client: httpx.AsyncClient) -> None:
    path = "/docs/static/swagger/swagger-ui-bundle.js"
    first = await client.get(path)
    again = await client.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (first.status_code, again.status_code) == (200, 304)


async def test_the_former_address_of_redoc_leads_to_the_page(client: httpx.AsyncClient) -> None:
    assert str((await client.get("/redoc", follow_redirects=True)).url).endswith("/docs")


@pytest.mark.parametrize("name", ["missing.js", "swagger/../../docs.py", "%2e%2e/docs.py"])
async def test_a_file_that_is_not_shipped_is_not_found(client: httpx.AsyncClient, name: str) -> None:
    assert_problem(await client.get(f"/docs/static/{name}"), 404)
