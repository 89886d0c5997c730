"""Bring a user's categories up to date: read, compute in a thread, write the differences."""

import asyncio

from app.db.engine import Database
from app.indexing.categories import store
from app.indexing.categories.clustering import MAX_CLUSTERED
from app.indexing.categories.draft import make_draft


async def make_categories(database: Database, user_id: str, model: str, *, again: bool = False) -> bool:
    """Bring the user's categories up to date with the catalogue. Return whether anything was written.

    `again` makes them from all vectors, however little has changed. No connection is held while they are computed.
    """
    async with database.snapshot(user_id) as session:
        state = await store.read_state(session, user_id, model)
        if state is None:
            return False
        has_work = again or state.changed or state.removed or (state.clustering is None and state.tool_count)
        sample = await store.read_sample(session, user_id, model, MAX_CLUSTERED) if has_work else []
    draft = await asyncio.to_thread(make_draft, state, sample, model, again=again) if has_work else None
    if draft is None:
        await store.write_version(database, user_id, state.catalog_version)
        return False
    pages = (
        store.stream_tools(database, user_id, model)
        if draft.is_new
        else store.stream_tools_by_id(database, user_id, model, state.changed)
    )
    # all tools of a small user are in the sample
    if state.tool_count > len(sample):
        async for page in pages:
            await asyncio.to_thread(draft.assign_tools, [tool for tool in page if tool.id not in draft.members])
    changed = (
        draft.members
        if draft.is_new
        else {each: draft.members[each] for each in state.changed if each in draft.members}
    )
    return await store.write(database, user_id, state, draft.clustering, list(draft.categories.values()), changed)
