"""`docs/reference/settings.md`: every setting with its type, default and meaning, from `app.settings`."""

from app.reload import RELOADABLE
from app.settings import Settings, secret_fields, variable_name
from docs.generators.json_schema import Schema, describe_type
from docs.generators.markdown import render_table

_INTRODUCTION = """# Settings reference

Settings come from environment variables, or from a file `.env` in the working directory (`make docs` writes this page).
A variable that is set to nothing counts as not set. A name that is almost the name of a setting is reported at the
start and by `toolscout doctor`.

A secret can also stand in a file: append `_FILE` to the name of the setting and give the path of the file, such as
`TOOLSCOUT_SECRET_KEY_FILE=/run/secrets/secret_key`. Setting both is an error. These settings are secrets:

{secrets}

Settings with "yes" under *reload* can be changed [without a restart](../guides/operations.md#changing-settings).

`TOOLSCOUT_ENVIRONMENT=production` refuses to start with the embedded Postgres, with a superuser in `DATABASE_URL`, or
without `TOOLSCOUT_SECRET_KEY`.
"""

_SECTIONS = {
    "Process": "environment role host port data_dir served_hosts public_url trusted_proxies web_origins log_level "
    "log_format drain_s demo",
    "Database": "database_url database_pooler listen_database_url read_database_url database_pool_size audit_days "
    "embedding_cache_days embedding_cache_max_rows",
    "Keys and secrets": "admin_api_key secret_key old_secret_keys metrics_key",
    "Identity provider": "oidc_issuer oidc_audience oidc_user_claim oidc_groups_claim oidc_admin_groups oidc_client_id "
    "oidc_client_secret oidc_scopes oidc_name",
    "Limits": "max_servers max_projects max_keys max_tags rate_per_user max_in_flight head_timeout_s body_timeout_s",
    "Embedding": "embedding_provider embedding_model local_model openai_api_key openai_base_url query_embed_budget_ms "
    "index_embed_timeout_s catalog_embed_budget_s query_cache_size breaker_failures breaker_retry_s",
    "Discovery": "discovery rollout_percent max_tools conversation_max_tools conversation_idle_turns "
    "conversation_ttl_hours glossary_file categories search_ann_above snapshot_mb hold_changed_tools "
    "hold_new_tools confirm_destructive "
    "find_failing_servers learn_from_use selection_log_days decision_log_days",
    "Cloud": "cloud_url cloud_key cloud_timeout_s",
    "Indexing": "max_tools_per_server index_concurrency listing_concurrency listings_per_user "
    "listings_per_host pending_retry_s run_lease_s reindex_every_s known_examples",
    "MCP servers": "outbound_allow stdio_servers credential_url credential_key credential_timeout_s "
    "oauth_clients redirect_origins "
    "connect_timeout_s list_timeout_s call_timeout_s "
    "max_call_timeout_s upstream_idle_s upstream_connections upstream_max_bytes max_result_bytes max_resource_bytes "
    "mcp_list_cache_s mcp_result_tokens",
    "Registry": "registry_url registry_allow",
    "Tracing": "otel_endpoint",
}
_REST = "Other settings"


def render_page() -> str:
    schema = Settings.model_json_schema(by_alias=False)["properties"]
    secrets = "\n".join(f"- `{variable_name(field)}`" for field in secret_fields())
    parts = [_INTRODUCTION.format(secrets=secrets)]
    for title, fields in group_fields().items():
        rows = [
            (
                f"`{variable_name(field)}`",
                _describe_type(schema[field]),
                _render_default(field),
                "yes" if field in RELOADABLE else "",
                _render_meaning(field),
            )
            for field in fields
        ]
        parts.append(f"## {title}\n\n" + render_table(("setting", "type", "default", "reload", "meaning"), rows))
    return "\n".join(parts)


def group_fields() -> dict[str, list[str]]:
    """Every field once; those that no section lists come last."""
    groups = {
        title: [name for name in names.split() if name in Settings.model_fields] for title, names in _SECTIONS.items()
    }
    known = {name for names in groups.values() for name in names}
    if rest := [name for name in Settings.model_fields if name not in known]:
        groups[_REST] = rest
    return groups


def _describe_type(schema: Schema) -> str:
    """All settings may be absent, so that null says nothing."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
    text = describe_type({**schema, "anyOf": choices} if choices else schema)
    return text.replace("password", "secret")


def _render_default(field: str) -> str:
    default = Settings.model_fields[field].default
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return "" if default is None or str(default) == "" else f"`{default}`"


def _render_meaning(field: str) -> str:
    return Settings.model_fields[field].description or ""
