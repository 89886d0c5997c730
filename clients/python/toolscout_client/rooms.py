"""Everything that Toolscout can be asked, once for both clients."""

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import httpx

from toolscout_client.calling import PageOf, Room, W, call, listing, to
from toolscout_client.repeating import Call, Pause, Steps
from toolscout_client.shapes import (
    CoreTools,
    Discovery,
    Execution,
    Health,
    Json,
    Key,
    KeyFields,
    KeyKind,
    Outcome,
    Preview,
    Project,
    ProjectChanges,
    ProjectFields,
    Reason,
    Rule,
    Rules,
    Run,
    Server,
    ServerChanges,
    ServerFields,
    Tag,
    Tool,
    ToolChange,
    ToolChanges,
    ToolFilter,
    Transport,
    User,
    UserChanges,
    Wishes,
)

TOOL_TIMEOUT_S = 60.0
"""How long a tool may run where nobody says: Toolscout's own default."""
_ROUND_TRIP_S = 30.0
RUN_TIMEOUT_S = 300.0
_FIRST_LOOK_S = 0.05
_LONGEST_LOOK_S = 1.0


class Conversation(Room[W]):
    """What a chat backend does for each message."""

    @call
    def discover(self, query: str | None = None, **wishes: Unpack[Wishes]) -> Steps[Discovery]:
        """The few tools for this message, or for these `messages`, ready to be given to the model."""
        return self._ask(Discovery, to("POST /discover", json={"query": query, **wishes}, repeatable=True))

    @call
    def why(self, tool: str, query: str | None = None, **wishes: Unpack[Wishes]) -> Steps[list[Reason]]:
        """Why a tool (its key, its name or `SERVER.TOOL`) is, or is not, in the answer: for each tool of that name."""
        body = {"tool": tool, "query": query, **wishes}
        return self._ask_for_all(Reason, to("POST /discover/why", json=body, repeatable=True))

    @call
    def execute(
        self,
        tool_key: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        *,
        tool_call: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        project_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Steps[Execution]:
        """Runs a tool, once: by its key, or by the model's own tool call as OpenAI and Anthropic shape it.

        A request whose answer got lost is sent again with the same idempotency key, and Toolscout answers with what
        came of the first."""
        body = {"tool_key": tool_key, "arguments": arguments, "tool_call": tool_call, "project_id": project_id}
        wanted = to(
            "POST /execute",
            json=body if timeout is None else body | {"timeout_ms": round(timeout * 1000)},
            headers={"Idempotency-Key": idempotency_key or uuid.uuid4().hex},
            timeout=(timeout or TOOL_TIMEOUT_S) + _ROUND_TRIP_S,
            repeatable=True,
        )
        return self._ask(Execution, wanted)

    @call
    def feedback(self, discovery_id: str, tool_key: str, outcome: Outcome) -> Steps[None]:
        """What became of a tool that was found."""
        body = {"discovery_id": discovery_id, "tool_key": tool_key, "outcome": outcome}
        return self._tell(to("POST /feedback", json=body))

    @call
    def health(self) -> Steps[Health]:
        """The process answers."""
        return self._ask(Health, to("GET /healthz"))

    @call
    def ready(self) -> Steps[Health]:
        """Its database does, too; `Unavailable` otherwise."""
        return self._ask(Health, to("GET /readyz"))

    @call
    def request(
        self, method: str, path: str, *, json: Any = None, params: Mapping[str, Any] | None = None
    ) -> Steps[httpx.Response]:
        """Whatever else Toolscout offers, with the same errors and the same care about repeating."""
        return self._sent(Call(method, path, json, params or {}, repeatable=method == "GET"))


class _Watching(Room[W]):
    def _look(self, run_id: str) -> Steps[Run]:
        return self._ask(Run, to("GET /runs/{}", run_id))

    def _until_ended(self, run: Run, timeout: float) -> Steps[Run]:
        """Looks again and again: no request is so long that somebody on the way would cut it off."""
        pause_s, deadline = _FIRST_LOOK_S, time.monotonic() + timeout
        while not run.ended and time.monotonic() < deadline:
            yield Pause(pause_s)
            pause_s = min(pause_s * 1.5, _LONGEST_LOOK_S)
            run = yield from self._look(run.id)
        return run


class Runs(_Watching[W]):
    @call
    def get(self, run_id: str) -> Steps[Run]:
        return self._look(run_id)

    @call
    def wait(self, run_id: str, timeout: float = RUN_TIMEOUT_S) -> Steps[Run]:
        """Until it has ended, well or not: look at its `state`. After `timeout` seconds it is given as it stands."""
        run = yield from self._look(run_id)
        return (yield from self._until_ended(run, timeout))


class Servers(_Watching[W]):
    @call
    def create(self, name: str, transport: Transport, **fields: Unpack[ServerFields]) -> Steps[Server]:
        """One with an address is asked for its tools at once; a `push` server is given them by `push_tools`."""
        return self._ask(Server, to("POST /servers", json={"name": name, "transport": transport, **fields}))

    @listing
    def list(self) -> PageOf[Server]:
        return self._pages(Server, to("GET /servers"))

    @call
    def get(self, server_id: str) -> Steps[Server]:
        return self._ask(Server, to("GET /servers/{}", server_id))

    @call
    def update(self, server_id: str, **changes: Unpack[ServerChanges]) -> Steps[Server]:
        return self._ask(Server, to("PATCH /servers/{}", server_id, json=changes))

    @call
    def delete(self, server_id: str) -> Steps[None]:
        return self._tell(to("DELETE /servers/{}", server_id))

    @call
    def push_tools(
        self, server_id: str, tools: Sequence[Json], *, wait: bool = False, force: bool = False
    ) -> Steps[Run]:
        """Replaces the server's tools by these MCP tools. With `wait` the run has ended: look at its `state`."""
        wanted = to("PUT /servers/{}/tools", server_id, json={"tools": tools}, params={"force": force})
        return self._run(wanted, wait=wait)

    @call
    def reindex(self, server_id: str, *, wait: bool = False, force: bool = False) -> Steps[Run]:
        """Asks the server for its tools. With `wait` the run has ended: look at its `state`."""
        return self._run(to("POST /servers/{}/reindex", server_id, params={"force": force}), wait=wait)

    @call
    def reindex_all(self, *, force: bool = False) -> Steps[Sequence[Run]]:
        return self._ask_for_all(Run, to("POST /reindex", params={"force": force}))

    @listing
    def runs(self, server_id: str) -> PageOf[Run]:
        """The newest first."""
        return self._pages(Run, to("GET /servers/{}/runs", server_id))

    def _run(self, wanted: Call, *, wait: bool) -> Steps[Run]:
        run = yield from self._ask(Run, wanted)
        return (yield from self._until_ended(run, RUN_TIMEOUT_S)) if wait else run


class Tools(Room[W]):
    @listing
    def list(self, **wanted: Unpack[ToolFilter]) -> PageOf[Tool]:
        """All that fit, by server and name; further pages are asked for when they are needed."""
        return self._pages(Tool, to("GET /tools", params=wanted))

    @call
    def get(self, tool_id: str) -> Steps[Tool]:
        return self._ask(Tool, to("GET /tools/{}", tool_id))

    @call
    def update(self, tool_id: str, **changes: Unpack[ToolChanges]) -> Steps[Tool]:
        return self._ask(Tool, to("PATCH /tools/{}", tool_id, json=changes))

    @call
    def approve(self, tool_id: str, definition_hash: str | None = None) -> Steps[Tool]:
        """Accepts a changed definition; with the hash of the one that was looked at, no other (`Conflict`)."""
        return self._ask(Tool, to("POST /tools/{}/approve", tool_id, params={"definition_hash": definition_hash}))

    @listing
    def history(self, tool_id: str) -> PageOf[ToolChange]:
        """How its definition has changed, the newest first."""
        return self._pages(ToolChange, to("GET /tools/{}/history", tool_id))

    @call
    def tags(self, project_id: str | None = None) -> Steps[Sequence[Tag]]:
        return self._ask_for_all(Tag, to("GET /tags", params={"project_id": project_id}))

    @call
    def core(self) -> Steps[CoreTools]:
        """The native tools that every answer includes."""
        return self._ask(CoreTools, to("GET /core-tools"))

    @call
    def replace_core(self, tools: Sequence[Json]) -> Steps[CoreTools]:
        """By these MCP tools. With an admin key, acting for nobody: everyone's."""
        return self._ask(CoreTools, to("PUT /core-tools", json={"tools": tools}))


class RuleBook(Room[W]):
    @call
    def get(self) -> Steps[Rules]:
        return self._ask(Rules, to("GET /rules"))

    @call
    def put(self, rules: Sequence[Rule]) -> Steps[Rules]:
        """All of them, in order, in place of those before."""
        return self._ask(Rules, to("PUT /rules", json={"rules": rules}))

    @call
    def preview(self, rules: Sequence[Rule], *, project_id: str | None = None, changed: bool = False) -> Steps[Preview]:
        """What they would do, as the user's rules or as a project's; `changed`: only tools that come or go."""
        body, params = {"rules": rules, "project_id": project_id}, {"changed": changed}
        return self._ask(Preview, to("POST /rules/preview", json=body, params=params, repeatable=True))


class Projects(Room[W]):
    @call
    def create(self, name: str, **fields: Unpack[ProjectFields]) -> Steps[Project]:
        return self._ask(Project, to("POST /projects", json={"name": name, **fields}))

    @listing
    def list(self) -> PageOf[Project]:
        return self._pages(Project, to("GET /projects"))

    @call
    def get(self, project_id: str) -> Steps[Project]:
        return self._ask(Project, to("GET /projects/{}", project_id))

    @call
    def update(self, project_id: str, **changes: Unpack[ProjectChanges]) -> Steps[Project]:
        return self._ask(Project, to("PATCH /projects/{}", project_id, json=changes))

    @call
    def delete(self, project_id: str) -> Steps[None]:
        """Its keys go with it."""
        return self._tell(to("DELETE /projects/{}", project_id))


class Users(Room[W]):
    """For administrators."""

    @call
    def create(self, user_id: str, name: str | None = None) -> Steps[User]:
        return self._ask(User, to("POST /users", json={"id": user_id, "name": name}))

    @listing
    def list(self) -> PageOf[User]:
        return self._pages(User, to("GET /users"))

    @call
    def get(self, user_id: str) -> Steps[User]:
        return self._ask(User, to("GET /users/{}", user_id))

    @call
    def update(self, user_id: str, **changes: Unpack[UserChanges]) -> Steps[User]:
        return self._ask(User, to("PATCH /users/{}", user_id, json=changes))

    @call
    def delete(self, user_id: str) -> Steps[None]:
        return self._tell(to("DELETE /users/{}", user_id))


class Keys(Room[W]):
    """For administrators."""

    @call
    def create(self, kind: KeyKind, **fields: Unpack[KeyFields]) -> Steps[Key]:
        """Its `key` is shown this once."""
        expiry = fields.get("expires_at")
        body = {"kind": kind, **fields, "expires_at": expiry and expiry.isoformat()}
        return self._ask(Key, to("POST /keys", json=body))

    @listing
    def list(self) -> PageOf[Key]:
        return self._pages(Key, to("GET /keys"))

    @call
    def revoke(self, key_id: str) -> Steps[None]:
        return self._tell(to("DELETE /keys/{}", key_id))
