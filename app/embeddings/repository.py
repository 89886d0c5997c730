"""The models that are registered here, and the one that is active. Vectors of two models are never compared.

Of every registered model each tool has a row of its own. Whoever writes rows holds the list of models still until its
transaction ends (`hold_models`); whoever changes the list waits for all of these (`change_models`).
"""

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, delete, insert, text, update

from app.db.engine import Session
from app.db.tables import embedding_models
from app.embeddings.base import Embedder
from app.embeddings.calibration import Calibration, shipped_calibration

# any number will do, as long as everybody takes the same
_LIST_LOCK = 7_300_418_257

_REGISTERED = """
    SELECT id, provider, name, dimension, calibration, active FROM embedding_models
    ORDER BY active DESC, created_at, id
"""


@dataclass(frozen=True)
class EmbeddingModel:
    id: str
    provider: str
    name: str
    dimension: int
    calibration: Calibration = field(repr=False)
    active: bool


async def registered_models(session: Session) -> list[EmbeddingModel]:
    """The active one first."""
    return [_model(*row) for row in await session.rows(_REGISTERED)]


async def lock_models_shared(session: Session) -> list[str]:
    """Their ids, the active one's first: so it is until the transaction ends. Before any other lock is taken."""
    await session.rows("SELECT pg_advisory_xact_lock_shared(%(lock)s)", {"lock": _LIST_LOCK})
    return [model_id for model_id, *_ in await session.rows(_REGISTERED)]


def lock_models_exclusive(connection: Connection) -> None:
    """Until the transaction ends nobody writes rows. The table's own lock keeps those out who change the list without
    this one, at a first start."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LIST_LOCK})
    connection.execute(text("LOCK TABLE embedding_models IN SHARE ROW EXCLUSIVE MODE"))


def list_models(connection: Connection) -> list[EmbeddingModel]:
    return [_model(*row) for row in connection.exec_driver_sql(_REGISTERED)]


def active_model(connection: Connection) -> EmbeddingModel | None:
    return next((model for model in list_models(connection) if model.active), None)


def activate_first(connection: Connection, embedder: Embedder, dimension: int) -> EmbeddingModel:
    """Where no model is active yet. Replicas that start together agree through the lock."""
    lock_models_exclusive(connection)
    return active_model(connection) or _insert(connection, embedder, dimension, active=True)


def register(connection: Connection, embedder: Embedder, dimension: int) -> EmbeddingModel:
    """From now on every run writes rows for it, too."""
    lock_models_exclusive(connection)
    known = next((model for model in list_models(connection) if model.id == embedder.model), None)
    return known or _insert(connection, embedder, dimension, active=False)


def activate(connection: Connection, model_id: str) -> None:
    """In place of the one that was; within a transaction that changes the models."""
    active = embedding_models.c.active
    connection.execute(update(embedding_models).where(active).values(active=False))
    connection.execute(update(embedding_models).where(embedding_models.c.id == model_id).values(active=True))


def unregister(connection: Connection, model_id: str) -> None:
    connection.execute(delete(embedding_models).where(embedding_models.c.id == model_id))


def store_calibration(connection: Connection, model: str, calibration: Calibration | None) -> None:
    """None: back to what ships with us."""
    stored = None if calibration is None else calibration.stored()
    connection.execute(update(embedding_models).where(embedding_models.c.id == model).values(calibration=stored))


def _insert(connection: Connection, embedder: Embedder, dimension: int, *, active: bool) -> EmbeddingModel:
    provider, _, name = embedder.model.partition(":")
    values = {"id": embedder.model, "provider": provider, "name": name, "dimension": dimension, "active": active}
    connection.execute(insert(embedding_models).values(**values))
    return _model(embedder.model, provider, name, dimension, None, active)


def _model(model_id: str, provider: str, name: str, dimension: int, stored: Any, active: bool) -> EmbeddingModel:
    calibration = shipped_calibration(model_id) if stored is None else Calibration.read(stored)
    return EmbeddingModel(model_id, provider, name, dimension, calibration, active)
