"""Response models of the health endpoints."""

from pydantic import BaseModel


class Health(BaseModel):
    status: str = "ok"


class Readiness(Health):
    model: str
    warnings: list[str]
