"""What is searched, how, and what is found."""

from pathlib import Path

from pydantic import BaseModel, Field


class DiscoverySettings(BaseModel):
    discovery: bool = Field(
        True, description="`0` searches nobody's messages: every answer holds all tools, up to the limit"
    )
    rollout_percent: float = Field(
        100.0,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="percentage of the users whose messages are searched; the others get all their tools, up to the "
        "limit, unless `discovery_enabled` is set for the user",
    )
    glossary_file: Path | None = Field(
        None,
        description="text file with your own words for searches, one `phrase, phrase = plain English words` on a line: "
        "abbreviations, product names, words of another language",
    )
    max_tools: int = Field(
        10,
        ge=1,
        le=128,
        description="maximum number of kept and found tools in a response, unless the request, its project or its "
        "user sets a higher `limit`; core tools are not counted, and there is always room for 5 new tools beside "
        "those in `keep`",
    )
    conversation_max_tools: int = Field(
        20,
        ge=1,
        description="number of tools of a conversation (`keep` with a `conversation_id`) above which those are removed "
        "that were not called for `TOOLSCOUT_CONVERSATION_IDLE_TURNS`; core tools are not counted",
    )
    conversation_idle_turns: int = Field(
        8, ge=1, description="turns without a call after which a tool may be removed from a conversation"
    )
    conversation_ttl_hours: int = Field(
        24, ge=1, le=8_760, description="hours after its last turn for which the tools of a conversation are remembered"
    )
    search_ann_above: int = Field(
        20_000, ge=0, description="number of tools of one user above which the search uses the HNSW index"
    )
    snapshot_mb: int = Field(
        256,
        ge=0,
        description="megabytes of memory in which each process holds users' tools, so that their searches need no "
        "database; a tool takes about 4 KB; 0 searches in Postgres alone",
    )
    learn_from_use: bool = Field(
        True,
        description="remember the vectors, not the texts, of messages for which a tool was used successfully, and rank "
        "by them; false: nothing is remembered, and what has been remembered does not count",
    )
    hold_changed_tools: bool = Field(
        False, description="hide a tool whose definition has changed, and do not run it, until it is approved"
    )
    hold_new_tools: bool = Field(
        False,
        description="hide a tool that a server adds after its first listing, and do not run it, until it is approved",
    )
    find_failing_servers: bool = Field(
        True,
        description="keep finding the tools of a server whose last connection failed, marked with `server_status`",
    )
    confirm_destructive: bool = Field(
        False,
        description="calls of tools whose annotations say `destructiveHint` need a confirmation of exactly this call",
    )
