"""The tags that a user has given to servers, to tools and by rules."""

from app.db.engine import Session

_USED_TAGS = """
    SELECT unnest(tags) FROM mcp_servers WHERE user_id = %(user_id)s
    UNION SELECT unnest(tags) FROM mcp_tools WHERE user_id = %(user_id)s AND tags <> '{}'
    UNION SELECT unnest(tags) FROM tool_rules WHERE user_id = %(user_id)s
"""


async def read_used_tags(session: Session, user_id: str) -> set[str]:
    return {tag for (tag,) in await session.rows(_USED_TAGS, {"user_id": user_id})}
