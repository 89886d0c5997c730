"""The registered embedding models, one of which is active. Vectors of two models are never compared.

Each tool has one row per registered model. A writer of rows holds a shared lock on the list of models until its
transaction ends (`lock_models_shared`); a change of the list waits for all writers (`lock_models_exclusive`).
"""

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, delete, insert, text, update

from app.db.engine import Database, Session
from app.db.notifications import NOTIFY, Channel
from app.db.tables import embedding_models
from app.embeddings.base import Embedder
from app.embeddings.calibration import Calibration, load_shipped_calibration
from app.local_postgres.database import owner_connection

# An arbitrary number; every process must use the same.
_ADVISORY_LOCK = 7_300_418_257

_SELECT_MODELS = """
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


async def fetch_models(database: Database) -> list[EmbeddingModel]:
    """Return all registered models, the active one first."""
    [rows] = await database.system_fetch([(_SELECT_MODELS, None)])
    return [_build_model(*row) for row in rows]


async def lock_models_shared(session: Session) -> list[str]:
    """Keep the list of models unchanged until the transaction ends. Return the ids, the active one first.

    Take this lock before any other.
    """
    await session.rows("SELECT pg_advisory_xact_lock_shared(%(lock)s)", {"lock": _ADVISORY_LOCK})
    return [model_id for model_id, *_ in await session.rows(_SELECT_MODELS)]


def lock_models_exclusive(connection: Connection) -> None:
    """Keep everyone from writing vectors until the transaction ends. The table lock also keeps out a first start, which
    changes the list without the advisory lock."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
    connection.execute(text("LOCK TABLE embedding_models IN SHARE ROW EXCLUSIVE MODE"))


def list_models(connection: Connection) -> list[EmbeddingModel]:
    """Return all registered models, the active one first."""
    return [_build_model(*row) for row in connection.exec_driver_sql(_SELECT_MODELS)]


def read_active_model(url: str) -> EmbeddingModel | None:
    with owner_connection(url) as connection:
        return _get_active_model(connection)


def activate_first(connection: Connection, embedder: Embedder, dimension: int) -> EmbeddingModel:
    """Register and activate a model if none is active yet. The lock makes replicas that start together agree."""
    lock_models_exclusive(connection)
    return _get_active_model(connection) or _insert(connection, embedder, dimension, active=True)


def register(connection: Connection, embedder: Embedder, dimension: int) -> EmbeddingModel:
    """Register a model, if it is not registered yet. From now on every index run also writes rows for it."""
    lock_models_exclusive(connection)
    known = next((model for model in list_models(connection) if model.id == embedder.model), None)
    return known or _insert(connection, embedder, dimension, active=False)


def activate(connection: Connection, model_id: str) -> None:
    """Make a registered model the active one. The caller holds `lock_models_exclusive`."""
    active = embedding_models.c.active
    connection.execute(update(embedding_models).where(active).values(active=False))
    connection.execute(update(embedding_models).where(embedding_models.c.id == model_id).values(active=True))
    _notify(connection)


def unregister(connection: Connection, model_id: str) -> None:
    connection.execute(delete(embedding_models).where(embedding_models.c.id == model_id))
    _notify(connection)


def store_calibration(connection: Connection, model_id: str, calibration: Calibration | None) -> None:
    """Store a calibration, or with None go back to the shipped one. Running services pick it up by themselves."""
    stored = None if calibration is None else calibration.to_json()
    connection.execute(update(embedding_models).where(embedding_models.c.id == model_id).values(calibration=stored))
    _notify(connection)


def _get_active_model(connection: Connection) -> EmbeddingModel | None:
    return next((model for model in list_models(connection) if model.active), None)


def _insert(connection: Connection, embedder: Embedder, dimension: int, *, active: bool) -> EmbeddingModel:
    provider, _, name = embedder.model.partition(":")
    values = {"id": embedder.model, "provider": provider, "name": name, "dimension": dimension, "active": active}
    connection.execute(insert(embedding_models).values(**values))
    _notify(connection)
    return _build_model(embedder.model, provider, name, dimension, None, active)


def _notify(connection: Connection) -> None:
    """Let running services read the list when the transaction has committed."""
    connection.exec_driver_sql(NOTIFY, {"channel": Channel.MODELS.value})


def _build_model(model_id: str, provider: str, name: str, dimension: int, stored: Any, active: bool) -> EmbeddingModel:
    calibration = load_shipped_calibration(model_id) if stored is None else Calibration.from_json(stored)
    return EmbeddingModel(model_id, provider, name, dimension, calibration, active)
