"""REST: health, readiness and metrics."""

import hmac
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response

from app.api.openapi import describe_text
from app.dependencies import ContainerDep, reject_repeated
from app.errors import Unauthenticated, Unavailable
from app.schemas.health import Health, Readiness

# not a StrictRoute: probes may add parameters of their own
router = APIRouter(tags=["operations"])

_METRICS = describe_text("text/plain", "metrics in Prometheus's format")


@router.get("/healthz")
async def get_health() -> Health:
    """200 while the process answers, whatever the state of the database."""
    return Health()


@router.get("/readyz")
async def get_readiness(container: ContainerDep) -> Readiness:
    """503 while the database does not answer, and once the process is stopping."""
    if container.draining.is_set():
        raise Unavailable("this process is stopping; another will answer")
    await container.database.ping()
    lost = [f"the node {node} of the database does not answer" for node in await container.nodes.find_lost()]
    return Readiness(model=container.model.id, warnings=[*container.warnings, *lost])


@router.get("/metrics", response_class=Response, responses={200: {"content": _METRICS}})
async def get_metrics(
    request: Request, container: ContainerDep, authorization: Annotated[str, Header(include_in_schema=False)] = ""
) -> Response:
    """Metrics in Prometheus's text format. If `TOOLSCOUT_METRICS_KEY` is set, it is needed as a bearer token."""
    reject_repeated(request, "Authorization")
    key = container.settings.metrics_key
    if key is not None and not hmac.compare_digest(authorization.encode(), f"Bearer {key.get_secret_value()}".encode()):
        raise Unauthenticated("/metrics needs TOOLSCOUT_METRICS_KEY as a bearer token")
    return Response(container.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")
