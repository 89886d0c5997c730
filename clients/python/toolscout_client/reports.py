"""Endpoints beside the chat: a user's catalogue as a whole, evaluations, and what was used."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from toolscout_client.models import Decision, DecisionFilter, ServerImport
from toolscout_client.report_models import (
    AuditEvent,
    AuditFilter,
    CatalogSearch,
    CatalogTool,
    Evaluation,
    LabelledMessage,
    Selection,
    Stats,
    Step,
    Time,
)
from toolscout_client.retries import Steps
from toolscout_client.transport import FetchPage, Resource, TransportT, endpoint, make_request, paginated

EVALUATION_TIMEOUT_S = 300.0


class CatalogResource(Resource[TransportT]):
    @endpoint
    def import_servers(self, config: Mapping[str, Any], values: Mapping[str, str] | None = None) -> Steps[ServerImport]:
        """Register the servers of an MCP client's configuration, such as a parsed `mcp.json`. `values` are those of its
        placeholders, by name. What cannot be imported is in `skipped`, and does not stop the others."""
        body = {"config": config, "values": values or {}}
        return self._fetch(ServerImport, make_request("POST /servers/import", json=body))

    @endpoint
    def catalog_search(
        self,
        query: str | Sequence[str],
        tools: Sequence[CatalogTool],
        *,
        context: str | None = None,
        max_results: int | None = None,
    ) -> Steps[CatalogSearch]:
        """Search the given tools, which are not stored, for one query or for several at once."""
        queries = [query] if isinstance(query, str) else list(query)
        body = {"query": queries, "context": context, "tools": tools, "max_results": max_results}
        return self._fetch(CatalogSearch, make_request("POST /catalog/search", json=body, retry_safe=True))

    @endpoint
    def evaluate(
        self,
        items: Sequence[LabelledMessage],
        *,
        limit: int | None = None,
        project_id: str | None = None,
        suggest: bool = False,
        timeout: float = EVALUATION_TIMEOUT_S,
    ) -> Steps[Evaluation]:
        """Measure how well labelled messages find their tools. `suggest` also lists tools that are hard to tell apart
        or too poorly described to be found."""
        body = {"items": items, "project_id": project_id, "suggest": suggest}
        request = make_request(
            "POST /eval",
            json=body if limit is None else body | {"limit": limit},
            timeout=timeout,
            retry_safe=True,
        )
        return self._fetch(Evaluation, request)


class ReportResource(Resource[TransportT]):
    @endpoint
    def stats(self, since: Time | None = None, until: Time | None = None, step: Step = "hour") -> Steps[Stats]:
        """Return discoveries over time, by default of the last 24 hours, with the most used tools and those that were
        never found. With an admin key and no user: the sums of all users."""
        params = {"since": since, "until": until, "step": step}
        return self._fetch(Stats, make_request("GET /stats", params=params))

    @paginated
    def audit(self, **filters: Unpack[AuditFilter]) -> FetchPage[AuditEvent]:
        """Iterate over audit events, newest first. A generator: pages are fetched when they are needed."""
        return self._fetch_pages(AuditEvent, make_request("GET /audit", params=filters))

    @paginated
    def decisions(self, **filters: Unpack[DecisionFilter]) -> FetchPage[Decision]:
        """Iterate over searches and the tools that they chose, newest first. A generator: pages are fetched when they
        are needed."""
        return self._fetch_pages(Decision, make_request("GET /decisions", params=filters))

    @paginated
    def selections(self, since: Time | None = None, until: Time | None = None) -> FetchPage[Selection]:
        """Iterate over logged messages and the tools selected for them, newest first. Empty unless the user's setting
        `selection_log` is on. A generator: pages are fetched when they are needed."""
        return self._fetch_pages(Selection, make_request("GET /selections", params={"since": since, "until": until}))

    @endpoint
    def delete_selections(self) -> Steps[None]:
        """Delete the user's logged messages. The setting stays as it is."""
        return self._send_without_result(make_request("DELETE /selections"))
