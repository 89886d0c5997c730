"""Serve the API documentation at `/docs`, with Swagger UI's files from this package: it works without the internet."""

from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

_STATIC = Path(__file__).with_name("static")

# Swagger UI keeps its icons in data URLs; everything else comes from this host.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


class _DocsFiles(StaticFiles):
    """The page is also one of the files: each has the same policy."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        return response


def add_docs(app: FastAPI) -> None:
    """Plain Starlette routes, as FastAPI's own documentation pages are: they are not part of the API."""
    app.add_route("/docs", _show_docs, include_in_schema=False)
    app.add_route("/redoc", _redirect_to_docs, include_in_schema=False)
    app.mount("/docs/static", _DocsFiles(directory=_STATIC), name="docs-static")


async def _show_docs(_request: Request) -> Response:
    return FileResponse(_STATIC / "docs.html", headers=_HEADERS)


async def _redirect_to_docs(_request: Request) -> Response:
    """ReDoc was served here by version 0.1.0."""
    return RedirectResponse("docs")
