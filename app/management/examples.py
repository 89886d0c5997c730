"""Write examples of what a tool is for, and forget examples."""

from collections.abc import Sequence

from app.audit.record import record_event
from app.catalog.tools import require_tool
from app.catalog.visibility import lock_user
from app.db.engine import Database
from app.search.searcher import Searcher
from app.usage import examples
from app.usage.discovery_vectors import delete_user_vectors
from app.usage.examples import Source, ToolExamples
from app.usage.learning import Learner


async def replace_examples(
    database: Database, searcher: Searcher, user_id: str, tool_id: str, messages: Sequence[str], *, actor: str
) -> ToolExamples:
    """Replace the messages that a person wrote for a tool; what was learnt from use stays.

    Raise `NotFound` if the tool does not exist, and `EmbeddingFailed` if the embedder fails.
    """
    await _require_tool(database, user_id, tool_id)
    distinct = list(dict.fromkeys(messages))
    model, vectors = await searcher.embed_messages(user_id, distinct)
    async with database.exclusive_transaction(user_id) as session:
        await lock_user(session, user_id)
        await examples.replace_messages(session, user_id, model, tool_id, distinct, vectors)
        await record_event(session, user_id, actor, "tool.examples", tool_id)
        return await examples.read_examples(session, user_id, model, tool_id)


async def forget_examples(
    database: Database, learner: Learner, user_id: str, tool_id: str, source: Source | None, *, actor: str
) -> None:
    """Delete the examples of a tool: those of one source, or all. Raise `NotFound` if the tool does not exist."""
    await _require_tool(database, user_id, tool_id)
    await learner.flush()  # calls that succeeded a moment ago would be learnt from after this
    async with database.transaction(user_id) as session:
        await examples.delete_examples(session, user_id, tool_id, source)
        await record_event(session, user_id, actor, "tool.forget", tool_id)


async def forget_all_examples(
    database: Database, learner: Learner, user_id: str, source: Source | None, *, actor: str
) -> None:
    """Delete the examples of all of a user's tools: those of one source, or all.

    With those that were learnt from use, also delete the vectors of recent messages: later feedback teaches nothing.
    """
    if source != "person":
        # Before the transaction and not after its commit: what is just being written is deleted below.
        await learner.discard_pending(user_id)
    async with database.transaction(user_id) as session:
        await examples.delete_examples(session, user_id, None, source)
        if source != "person":
            await delete_user_vectors(session, user_id)
        await record_event(session, user_id, actor, "examples.delete", None)


async def _require_tool(database: Database, user_id: str, tool_id: str) -> None:
    async with database.transaction(user_id) as session:
        await require_tool(session, user_id, tool_id)
