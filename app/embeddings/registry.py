"""The models that have been used here, and the one that is active. Vectors of two models are never compared."""

from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, text

from app.database.rows import record
from app.embeddings.base import Embedder
from app.models import embedding_models

UNCALIBRATED_THRESHOLD = 0.3

# A threshold belongs to a model: cosines of granite lie high, irrelevant pairs around .50.
_CALIBRATED = {"local:granite-embedding-30m-english": 0.54, "openai:text-embedding-3-small": 0.3}


@dataclass(frozen=True)
class ActiveModel:
    id: str
    provider: str
    name: str
    dimension: int
    threshold: float


def active_model(connection: Connection) -> ActiveModel | None:
    row = connection.execute(select(embedding_models).where(embedding_models.c.active)).one_or_none()
    return None if row is None else record(ActiveModel, row)


def activate_first(connection: Connection, embedder: Embedder, dimension: int) -> ActiveModel:
    """Where no model is active yet. Replicas that start together agree through the unique index on `active`."""
    provider, _, name = embedder.model.partition(":")
    connection.execute(text("LOCK TABLE embedding_models IN SHARE ROW EXCLUSIVE MODE"))
    if (known := active_model(connection)) is not None:
        return known
    model = ActiveModel(embedder.model, provider, name, dimension, calibrated_threshold(embedder.model))
    connection.execute(insert(embedding_models).values(**vars(model), active=True))
    return model


def calibrated_threshold(model: str) -> float:
    return next((value for prefix, value in _CALIBRATED.items() if model.startswith(prefix)), UNCALIBRATED_THRESHOLD)
