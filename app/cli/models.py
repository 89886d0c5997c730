"""`toolscout model …`: which embedding models there are, and letting another one take over while the service runs."""

import argparse
import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

from app import audit
from app.cli.context import ACTOR
from app.cli.progress import ProgressBar
from app.container import Container, local_embedders, make_embedder, open_container, probe_dimension
from app.embeddings.base import Embedder
from app.embeddings.repository import EmbeddingModel, list_models, register
from app.errors import InvalidInput
from app.indexing.backfill import ProgressCallback, count_missing_vectors
from app.indexing.model_switch import change_model, drop_model
from app.local_postgres.database import connect_database, owner_connection
from app.settings import Settings

_GRACE_S = 5.0


def add_model_commands(commands: Any) -> None:
    model = commands.add_parser("model", help="embedding models").add_subparsers(dest="model_command", required=True)

    listing = model.add_parser("list", help="registered models, and how many tools have a vector of each")
    listing.set_defaults(deed=_list)

    using = model.add_parser("use", help="embed all tools with another model while the service runs, then switch")
    using.add_argument("name", help="as the endpoint calls it, or an id of `toolscout model list`")
    using.add_argument("--provider", choices=["openai", "local"], help="of a new model (default: openai)")
    using.add_argument(
        "--incomplete", action="store_true", help="switch even if some tools could not be embedded: words find them"
    )
    using.set_defaults(deed=_use)

    dropping = model.add_parser("drop", help="forget a model that is no longer active, and all vectors of it")
    dropping.add_argument("name", help="an id of `toolscout model list`")
    dropping.set_defaults(deed=_drop)


async def _list(settings: Settings, _options: argparse.Namespace) -> int:
    async with _opened(settings) as (container, url):
        for model in await asyncio.to_thread(_registered, url):
            missing, total = await count_missing_vectors(container.indexer, model.id)
            mark = "*" if model.active else " "
            print(f"{mark} {model.id:48}  {model.dimension:5} dimensions  {total - missing} of {total} tools")
    return 0


async def _use(settings: Settings, options: argparse.Namespace) -> int:
    async with _opened(settings) as (container, url):
        model = _named(await asyncio.to_thread(_registered, url), options.name, options.provider)
        if model is None:
            model = await _register(settings, url, options.name, options.provider or "openai")
        if model.active:
            print(f"{model.id} is active already")
            return 0
        await container.models.refresh()
        before = container.model.id
        with _bar(model.id) as told:
            kept, owner = container.models.named(model.id), partial(owner_connection, url)
            await change_model(container.indexer, owner, kept, told, incomplete=options.incomplete)
        await _record(container, "model.use", model.id)
    print(f"{model.id} is active: every running service answers by it within a second or two")
    print(f"the way back: toolscout model use {before}; when all is well: toolscout model drop {before}")
    return 0


async def _drop(settings: Settings, options: argparse.Namespace) -> int:
    async with _opened(settings) as (container, url):
        model = _named(await asyncio.to_thread(_registered, url), options.name, None)
        model_id = options.name if model is None else model.id
        with _bar(f"{model_id}: users") as told:
            await drop_model(partial(owner_connection, url), model_id, told, grace_s=_GRACE_S)
        await _record(container, "model.drop", model_id)
    print(f"{model_id}: {'what was left of it is gone' if model is None else 'dropped, with all its vectors'}")
    return 0


async def _record(container: Container, action: str, model_id: str) -> None:
    async with container.database.system_transaction() as session:
        await audit.record(session, None, ACTOR, action, model_id)


def _registered(url: str) -> list[EmbeddingModel]:
    with owner_connection(url) as connection:
        return list_models(connection)


def _named(models: Sequence[EmbeddingModel], name: str, provider: str | None) -> EmbeddingModel | None:
    """By its id or, where that is clear, by its name alone."""
    found = [model for model in models if name in (model.id, model.name) and provider in (None, model.provider)]
    if len(found) > 1:
        raise InvalidInput(f"{name!r} is the name of several models: {', '.join(model.id for model in found)}")
    return found[0] if found else None


async def _register(settings: Settings, url: str, name: str, provider: str) -> EmbeddingModel:
    embedder = await asyncio.to_thread(_new_embedder, settings, name, provider)
    try:
        dimension = await probe_dimension(embedder)
    finally:
        await embedder.aclose()
    return await asyncio.to_thread(_registered_anew, url, embedder, dimension)


def _registered_anew(url: str, embedder: Embedder, dimension: int) -> EmbeddingModel:
    with owner_connection(url) as connection:
        return register(connection, embedder, dimension)


def _new_embedder(settings: Settings, name: str, provider: str) -> Embedder:
    if provider == "openai":
        return make_embedder(settings, f"openai:{name.removeprefix('openai:')}")
    packs = {embedder.model: embedder for embedder in local_embedders(settings)}
    for model_id, embedder in packs.items():
        if name in (model_id, *_names(model_id)):
            return embedder
    raise InvalidInput(f"there is no local model {name!r} here, but: {', '.join(packs)}")


def _names(model_id: str) -> tuple[str, str]:
    """Of a local one: with and without the first digits of its pack's hash."""
    name = model_id.removeprefix("local:")
    return name, name.rpartition(":")[0]


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[tuple[Container, str]]:
    """Also without the active model's settings: the way back from it needs none of them."""
    async with (
        connect_database(settings) as url,
        open_container(settings, url, working=False, serving=False, embedding=False) as container,
    ):
        yield container, url


@contextmanager
def _bar(title: str) -> Iterator[ProgressCallback]:
    bar = ProgressBar(title)
    try:
        yield partial(bar.show, state="")
    finally:
        bar.end()
