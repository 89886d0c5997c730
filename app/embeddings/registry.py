"""The models that have been used here, and the one that is active. Vectors of two models are never compared."""

from dataclasses import dataclass, field

from sqlalchemy import Connection, insert, select, text, update

from app.embeddings.base import Embedder
from app.embeddings.calibration import Calibration, shipped_calibration
from app.models import embedding_models


@dataclass(frozen=True)
class ActiveModel:
    id: str
    provider: str
    name: str
    dimension: int
    calibration: Calibration = field(repr=False)


def active_model(connection: Connection) -> ActiveModel | None:
    row = connection.execute(select(embedding_models).where(embedding_models.c.active)).one_or_none()
    if row is None:
        return None
    calibration = shipped_calibration(row.id) if row.calibration is None else Calibration.read(row.calibration)
    return ActiveModel(row.id, row.provider, row.name, row.dimension, calibration)


def activate_first(connection: Connection, embedder: Embedder, dimension: int) -> ActiveModel:
    """Where no model is active yet. Replicas that start together agree through the unique index on `active`."""
    provider, _, name = embedder.model.partition(":")
    connection.execute(text("LOCK TABLE embedding_models IN SHARE ROW EXCLUSIVE MODE"))
    if (known := active_model(connection)) is not None:
        return known
    model = ActiveModel(embedder.model, provider, name, dimension, shipped_calibration(embedder.model))
    values = {name: value for name, value in vars(model).items() if name != "calibration"}
    connection.execute(insert(embedding_models).values(**values, active=True))
    return model


def store_calibration(connection: Connection, model: str, calibration: Calibration | None) -> None:
    """None: back to what ships with us."""
    stored = None if calibration is None else calibration.stored()
    connection.execute(update(embedding_models).where(embedding_models.c.id == model).values(calibration=stored))
