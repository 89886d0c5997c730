"""The functions whose statements may ask all nodes of a distributed database, with the reason of each.

None of them serves `/discover` or a call of a tool. While a node is away, most of them fail or wait. One serves
`/catalog/search`: `read_vector_cache`, which finds nothing then, so that texts are embedded again.
"""

from collections.abc import Mapping

_KEYS = "keys are distributed by their hash, which requests look them up by"
_ALL_USERS = "an administrator's view of all users"
_BY_ID = "an administrator names a server or a run by its id alone"
_BACKGROUND = "looks for work of all users, in the background"
_COMMAND = "a command of the operator, over all users"

FAN_OUTS: Mapping[str, str] = {
    "app.audit.events.list_events": _ALL_USERS,
    "app.audit.names.read_names": _KEYS,
    "app.auth.keys.admin_key_exists": _KEYS,
    "app.auth.keys.count_active_keys": _KEYS,
    "app.auth.keys.delete_keys": _KEYS,
    "app.auth.keys.get_key": _KEYS,
    "app.auth.keys.list_keys": _KEYS,
    "app.auth.keys.revoke_key": _KEYS,
    "app.auth.users.list_users": _ALL_USERS,
    "app.auth.users.raise_all_catalog_versions": "core tools of everyone change what every user sees",
    "app.catalog.attention.count_attention": _ALL_USERS,
    "app.catalog.projects.read_project_names": _ALL_USERS,
    "app.catalog.servers.count_undecryptable": _COMMAND,
    "app.catalog.servers.get_server_owner": _BY_ID,
    "app.catalog.servers.reseal_headers": _COMMAND,
    "app.catalog.shared_servers.count_members": "a shared server has members among all users",
    "app.catalog.shared_servers.find_differences": "a shared server has members among all users",
    "app.catalog.shared_servers.find_orphans": "a shared server has members among all users",
    "app.catalog.visibility.recompute_stale": _BACKGROUND,
    "app.db.retention.delete_in_batches": _BACKGROUND,
    "app.connections.repository.count_undecryptable_accounts": _COMMAND,
    "app.connections.repository.reseal_connections": _COMMAND,
    "app.indexing.backfill.backfill_vectors": _COMMAND,
    "app.indexing.backfill.count_missing_vectors": _COMMAND,
    "app.indexing.categories.store.list_due_users": _BACKGROUND,
    "app.indexing.public_listings._has_no_room": "the size of the lists of all servers together",
    "app.indexing.queue.claim_run": "looks for runs of all users; while a node is away, of those that answer",
    "app.indexing.model_switch._activate": _COMMAND,
    "app.indexing.model_switch._count_learned": _COMMAND,
    "app.indexing.model_switch._delete_unregistered_rows": _COMMAND,
    "app.indexing.model_switch._has_leftovers": _COMMAND,
    "app.indexing.model_switch._raise_catalog_versions": _COMMAND,
    "app.indexing.queue._forget_finished_users": "while a node is away, of users whose nodes answer",
    "app.indexing.queue.get_run_owner": _BY_ID,
    "app.indexing.queue_metrics.update_queue_metrics": _BACKGROUND,
    "app.indexing.schedule.find_servers_to_refresh": _BACKGROUND,
    "app.indexing.schedule.find_servers_with_pending_tools": _BACKGROUND,
    "app.indexing.shared_server_sync.SharedServerSync._count_waiting": _BACKGROUND,
    "app.indexing.shared_server_sync.SharedServerSync._retry_failed_runs": _BACKGROUND,
    "app.indexing.store.read_vector_cache": "vectors are distributed by their texts, and shared by users",
    "app.usage.decision_log.list_decisions": _ALL_USERS,
    "app.usage.examples.list_missing_messages": _COMMAND,
    "app.usage.owners._find_skipped": _BACKGROUND,
    "app.usage.selection_log.list_selections": _ALL_USERS,
    "app.usage.stats._read_sums": _ALL_USERS,
    "app.usage.stats.count_not_english": _ALL_USERS,
}

USER_FAN_OUTS: Mapping[str, str] = {
    "app.audit.names.read_names": _KEYS,
    "app.auth.keys.delete_keys": _KEYS,
}
"""Those that may do so in the transaction of a user."""

NOT_DISTRIBUTED = ("app.indexing.large_tenants.", "app.search.hnsw.", "app.search.large_tenant.")
"""Modules that do not run in a distributed database, where no user has indexes of their own."""
