"""How texts become vectors."""

import re
from pathlib import Path

from pydantic import AliasChoices, BaseModel, Field, SecretStr, field_validator

_PYTHON_FACTORY = re.compile(r"python:[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class EmbeddingSettings(BaseModel):
    embedding_provider: str = Field(
        "local",
        description="embedder for tools and messages: `local`, `openai` for any OpenAI-compatible endpoint, or "
        "`python:package.module:factory` for [your own](../guides/operations.md#an-embedder-of-your-own)",
    )
    embedding_model: str | None = Field(
        None, description="model name at the OpenAI-compatible endpoint, such as `text-embedding-3-small`"
    )
    local_model: Path | None = Field(None, description="path of a local model pack that replaces the built-in one")
    openai_api_key: SecretStr | None = Field(
        None,
        validation_alias=AliasChoices("OPENAI_API_KEY", "openai_api_key"),
        description="API key for the OpenAI-compatible endpoint",
    )
    openai_base_url: str | None = Field(
        None,
        validation_alias=AliasChoices("OPENAI_BASE_URL", "openai_base_url"),
        description="base URL of the OpenAI-compatible endpoint",
    )
    query_embed_budget_ms: int = Field(
        800,
        ge=10,
        le=60_000,
        description="milliseconds that an OpenAI-compatible endpoint, or an embedder of your own, may take to embed a "
        "query before falling back to lexical search; time in queues of this process, or in which it is too busy to "
        "receive the answer, does not count; the local model has no such limit",
    )
    index_embed_timeout_s: float = Field(
        60.0, gt=0, description="timeout in seconds for embedding one batch of tools while indexing"
    )
    catalog_embed_budget_s: float = Field(
        10.0, ge=0, le=300, description="seconds that `/catalog/search` may spend on embedding tools it has not seen"
    )
    query_cache_size: int = Field(
        10_000,
        ge=0,
        description="size of the cache of query embeddings in memory, as a number of embeddings with 384 dimensions "
        "(2.3 kB each); they are kept for five minutes, and those of one user take at most half of it",
    )
    breaker_failures: int = Field(
        5, ge=1, description="consecutive failures that open the circuit breaker of the embedder or the cloud"
    )
    breaker_retry_s: float = Field(
        15.0, gt=0, description="seconds after which an open circuit breaker lets one query through"
    )

    @field_validator("embedding_provider")
    @classmethod
    def _check_embedding_provider(cls, value: str) -> str:
        if value not in ("local", "openai") and not _PYTHON_FACTORY.fullmatch(value):
            raise ValueError("must be local, openai or python:package.module:factory")
        return value
