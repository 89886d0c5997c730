"""Embeds the examples that people wrote in words for a model that is about to become active."""

from app.db.engine import Database
from app.embeddings.loaded_models import LoadedModel
from app.search.query import parse_query
from app.usage.examples import add_messages, list_missing_messages


async def backfill_examples(database: Database, loaded: LoadedModel) -> None:
    """Embed the messages that have no vector of the model, tool by tool. Raise `EmbeddingFailed` if it fails."""
    async with database.system_transaction() as session:
        missing = await list_missing_messages(session, loaded.model.id)
    for user_id, tool_id, messages in missing:
        vectors = await loaded.embedder.embed_queries(
            [parse_query(message).search_text for message in messages.values()]
        )
        async with database.transaction(user_id) as session:
            await add_messages(session, user_id, loaded.model.id, tool_id, messages, list(vectors))
