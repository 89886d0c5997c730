"""`toolscout model list`, `use` and `drop`."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Annotated, Literal

import typer

from app.cli.context import ACTOR, with_settings
from app.cli.group import make_group
from app.cli.output import print_table
from app.cli.progress import ProgressBar
from app.container import Container, open_container
from app.embeddings.base import Embedder
from app.embeddings.factory import make_configured_embedder, make_embedder, make_local_embedders, probe_dimension
from app.embeddings.repository import EmbeddingModel, list_models, register
from app.errors import InvalidInput
from app.indexing.backfill import ProgressCallback, count_missing_vectors
from app.local_postgres.database import connect_database, owner_connection
from app.management.models import drop_model, use_model
from app.settings import Settings

_GRACE_S = 8.0
"""Time for requests that began with a model to finish before its vectors are deleted."""

commands = make_group()
model_commands = make_group("Manage embedding models.")
commands.add_typer(model_commands, name="model")


@model_commands.command("list")
@with_settings
async def list_registered(settings: Settings) -> int:
    """List the registered models and how many tools have a vector of each.

    The active model is marked with an asterisk.
    """
    rows: list[tuple[str, str, int, int, int]] = []
    async with _open_without_embedder(settings) as (container, url):
        for model in await asyncio.to_thread(_read_models, url):
            missing, total = await count_missing_vectors(container.indexer, model.id)
            rows.append(("*" if model.active else " ", model.id, model.dimension, total - missing, total))
    print_table(
        ["", "model", "dimensions", "tools"],
        [(mark, model_id, str(dimension), f"{done} of {total}") for mark, model_id, dimension, done, total in rows],
        [
            f"{mark} {model_id:48}  {dimension:5} dimensions  {done} of {total} tools"
            for mark, model_id, dimension, done, total in rows
        ],
    )
    return 0


@model_commands.command("use")
@with_settings
async def use(
    settings: Settings,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="The model's name at its endpoint, or an id from `toolscout model list`."),
    ],
    provider: Annotated[
        Literal["openai", "local", "python"] | None,
        typer.Option("--provider", help="The provider of a new model. Without it: that of the id, else openai."),
    ] = None,
    *,
    incomplete: Annotated[
        bool,
        typer.Option(
            "--incomplete",
            help="Switch even if some tools could not be embedded. These are found by lexical search only.",
        ),
    ] = False,
) -> int:
    """Embed all tools with another model, then switch to it.

    The service keeps running and uses the previous model until the switch.
    """
    async with _open_without_embedder(settings) as (container, url):
        model = _find_model(await asyncio.to_thread(_read_models, url), name, provider)
        if model is None:
            model = await _register(settings, url, name, provider or _parse_provider(name))
        if model.active:
            print(f"{model.id} is already active")
            return 0
        await container.models.refresh()
        before = container.model.id
        with _progress_bar(model.id) as report:
            loaded, owner = container.models.get(model.id), partial(owner_connection, url)
            learned = await use_model(
                container.database, container.indexer, owner, loaded, report, incomplete=incomplete, actor=ACTOR
            )
    print(f"{model.id} is active; running services use it within two seconds")
    if learned:
        print(f"{_describe_learned(learned)} with {before}: back when you switch back to it, gone when you drop it")
    print(f"to switch back: toolscout model use {before}; to delete the previous model: toolscout model drop {before}")
    return 0


@model_commands.command("drop")
@with_settings
async def drop(
    settings: Settings,
    name: Annotated[str, typer.Argument(metavar="NAME", help="An id from `toolscout model list`.")],
) -> int:
    """Delete a model that is not active, with all its vectors and what was learnt from use with it."""
    async with _open_without_embedder(settings) as (container, url):
        model = _find_model(await asyncio.to_thread(_read_models, url), name, None)
        model_id = name if model is None else model.id
        with _progress_bar(f"{model_id}: users") as report:
            owner = partial(owner_connection, url)
            learned = await drop_model(container.database, owner, model_id, report, grace_s=_GRACE_S, actor=ACTOR)
    print(f"{model_id}: {'deleted what was left of it' if model is None else 'dropped, with all its vectors'}")
    if learned:
        print(f"{_describe_learned(learned)} with it: deleted, too")
    return 0


def _describe_learned(count: int) -> str:
    return "1 example was learnt from use" if count == 1 else f"{count} examples were learnt from use"


def _read_models(url: str) -> list[EmbeddingModel]:
    with owner_connection(url) as connection:
        return list_models(connection)


def _find_model(models: Sequence[EmbeddingModel], name: str, provider: str | None) -> EmbeddingModel | None:
    """Find a model by its id, or by its name if only one model has it."""
    found = [model for model in models if name in (model.id, model.name) and provider in (None, model.provider)]
    if len(found) > 1:
        raise InvalidInput(f"{name!r} is the name of several models: {', '.join(model.id for model in found)}")
    return found[0] if found else None


def _parse_provider(name: str) -> str:
    """Return the provider that an id begins with. A plain name is one at the OpenAI-compatible endpoint."""
    provider = name.partition(":")[0]
    return provider if provider in ("local", "python") else "openai"


async def _register(settings: Settings, url: str, name: str, provider: str) -> EmbeddingModel:
    embedder = await asyncio.to_thread(_make_new_embedder, settings, name, provider)
    try:
        dimension = await probe_dimension(embedder)
    finally:
        await embedder.aclose()
    return await asyncio.to_thread(_store_model, url, embedder, dimension)


def _store_model(url: str, embedder: Embedder, dimension: int) -> EmbeddingModel:
    with owner_connection(url) as connection:
        return register(connection, embedder, dimension)


def _make_new_embedder(settings: Settings, name: str, provider: str) -> Embedder:
    if provider == "openai":
        return make_embedder(settings, f"openai:{name.removeprefix('openai:')}")
    if provider == "python":
        return _make_plugin(settings, name)
    embedders = {embedder.model: embedder for embedder in make_local_embedders(settings)}
    for model_id, embedder in embedders.items():
        if name in (model_id, *_local_names(model_id)):
            return embedder
    raise InvalidInput(f"there is no local model {name!r}; there are: {', '.join(embedders)}")


def _make_plugin(settings: Settings, name: str) -> Embedder:
    """Return the operator's own embedder by its id, or by the name of its model."""
    if not settings.embedding_provider.startswith("python:"):
        raise InvalidInput(
            f"{name!r} is an embedder of your own: set TOOLSCOUT_EMBEDDING_PROVIDER to python:package.module:factory"
        )
    embedder = make_configured_embedder(settings)
    source = f"{settings.embedding_provider}:"
    if name not in (embedder.model, embedder.model.removeprefix(source)):
        raise InvalidInput(f"{source.rstrip(':')} provides {embedder.model}, not {name!r}")
    return embedder


def _local_names(model_id: str) -> tuple[str, str]:
    """Return the name of a local model with and without the first digits of its pack's hash."""
    name = model_id.removeprefix("local:")
    return name, name.rpartition(":")[0]


@asynccontextmanager
async def _open_without_embedder(settings: Settings) -> AsyncIterator[tuple[Container, str]]:
    """Open a container that does not need the settings of the active model, so that one can switch away from it."""
    async with (
        connect_database(settings) as url,
        open_container(settings, url, working=False, serving=False, embedding=False) as container,
    ):
        yield container, url


@contextmanager
def _progress_bar(title: str) -> Iterator[ProgressCallback]:
    with ProgressBar(title) as bar:
        yield partial(bar.show, state="")
