"""REST: is it alive, is it ready, how does it fare."""

import hmac
from typing import Annotated

from fastapi import APIRouter, Header, Response
from pydantic import BaseModel

from app.api.middleware.body_limit import StrictRoute
from app.dependencies import ContainerDep
from app.errors import Unauthenticated, Unavailable

router = APIRouter(tags=["operations"], route_class=StrictRoute)


class Health(BaseModel):
    status: str = "ok"


class Readiness(Health):
    model: str
    warnings: list[str]


@router.get("/healthz")
async def healthz() -> Health:
    """The process answers; says nothing about the database."""
    return Health()


@router.get("/readyz")
async def readyz(container: ContainerDep) -> Readiness:
    """503 while the database does not answer, and from the moment on that the process was told to stop."""
    if container.draining.is_set():
        raise Unavailable("this process is about to stop; another will answer")
    await container.database.ping()
    return Readiness(model=container.model.id, warnings=list(container.warnings))


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(container: ContainerDep, authorization: Annotated[str, Header()] = "") -> Response:
    """In Prometheus's text format; with `TOOLSCOUT_METRICS_KEY`, if one is set, as a bearer token."""
    wanted = container.settings.metrics_key
    if wanted is not None and not hmac.compare_digest(
        authorization.encode(), f"Bearer {wanted.get_secret_value()}".encode()
    ):
        raise Unauthenticated("/metrics asks for TOOLSCOUT_METRICS_KEY as a bearer token")
    return Response(container.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")
