"""Switch to another embedding model, drop one, and store a model's calibration or a user's own.

Changes of models need the database owner's connection, so that the audit event follows in a transaction of its own.
"""

import asyncio

from app.audit.actions import Action
from app.audit.record import record_event
from app.auth.users import update_user
from app.db.engine import Database
from app.embeddings import repository
from app.embeddings.calibration import Calibration, UserCalibration
from app.embeddings.loaded_models import LoadedModel
from app.indexing import model_switch
from app.indexing.backfill import ProgressCallback
from app.indexing.model_switch import OwnerConnection
from app.indexing.reindex import Indexer


async def use_model(
    database: Database,
    indexer: Indexer,
    owner: OwnerConnection,
    model: LoadedModel,
    on_progress: ProgressCallback,
    *,
    incomplete: bool,
    actor: str,
) -> int:
    """Embed all tools with the model, then switch to it. `incomplete`: switch even if some vectors are missing.

    Return how many examples that were learnt from use stay with the previous model.
    """
    learned = await model_switch.change_model(indexer, owner, model, on_progress, incomplete=incomplete)
    await _record(database, "model.use", model.model.id, actor)
    return learned


async def drop_model(
    database: Database,
    owner: OwnerConnection,
    model_id: str,
    on_progress: ProgressCallback,
    *,
    grace_s: float,
    actor: str,
) -> int:
    """Remove an inactive model and its vectors, after a grace period for requests that began with it.

    Return how many examples that were learnt from use end with it.
    """
    learned = await model_switch.drop_model(owner, model_id, on_progress, grace_s=grace_s)
    await _record(database, "model.drop", model_id, actor)
    return learned


async def store_calibration(
    database: Database, owner: OwnerConnection, model_id: str, calibration: Calibration | None, *, actor: str
) -> None:
    """Store a model's no-match calibration; None restores the one that ships with it."""
    await asyncio.to_thread(_store_calibration, owner, model_id, calibration)
    await _record(database, "model.calibrate", model_id, actor)


async def store_user_calibration(database: Database, user_id: str, own: UserCalibration | None, *, actor: str) -> None:
    """Store a user's own calibration; None removes it, so that the model's applies. The user's outcomes start again.

    Raise `NotFound` if the user does not exist.
    """
    async with database.system_transaction() as session:
        stored = None if own is None else own.to_json()
        await update_user(session, user_id, {"calibration": stored, "adaptation": {}})
        await record_event(session, user_id, actor, "user.calibrate", user_id)


def _store_calibration(owner: OwnerConnection, model_id: str, calibration: Calibration | None) -> None:
    with owner() as connection:
        repository.store_calibration(connection, model_id, calibration)


async def _record(database: Database, action: Action, model_id: str, actor: str) -> None:
    async with database.system_transaction() as session:
        await record_event(session, None, actor, action, model_id)
