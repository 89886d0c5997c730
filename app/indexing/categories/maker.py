"""Bring a user's categories up to date: read, compute in a thread, write the differences."""

from app.db.engine import Database
from app.indexing.categories import store
from app.indexing.categories.clustering import MAX_CLUSTERED
from app.indexing.categories.draft import Draft, make_draft
from app.indexing.categories.pacing import Checkpoint, run_paced
from app.indexing.categories.store import StoredState, Tool, write


async def make_categories(database: Database, user_id: str, model: str, *, again: bool = False) -> bool:
    """Bring the user's categories up to date with the catalogue. Return whether anything was written.

    `again` makes them from all vectors, however little has changed. No connection is held while they are computed.
    """
    async with database.snapshot(user_id) as session:
        state = await store.read_state(session, user_id, model)
        if state is None:
            return False
        has_work = again or state.has_changed
        sample = await store.read_sample(session, user_id, model, MAX_CLUSTERED) if has_work else []
    draft = await run_paced(make_draft, state, sample, model, again=again) if has_work else None
    if draft is None:
        await store.write_version(database, user_id, state)
        return False
    # all tools of a small user are in the sample
    if state.tool_count > len(sample):
        await _assign_others(database, user_id, model, state, draft)
    changed = (
        draft.members
        if draft.is_new
        else {each: draft.members[each] for each in state.changed if each in draft.members}
    )
    return await write(database, user_id, state, draft.clustering, list(draft.categories.values()), changed)


async def _assign_others(database: Database, user_id: str, model: str, state: StoredState, draft: Draft) -> None:
    """Put the tools that are not in the sample into categories: all of them, or those that have changed."""
    pages = (
        store.stream_tools(database, user_id, model)
        if draft.is_new
        else store.stream_tools_by_id(database, user_id, model, state.changed)
    )
    async for page in pages:
        await run_paced(_assign, draft, [tool for tool in page if tool.id not in draft.members])


def _assign(checkpoint: Checkpoint, draft: Draft, tools: list[Tool]) -> None:
    draft.assign_tools(tools, checkpoint)
