"""The endpoints of Toolscout, written once for both clients."""

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import httpx

from toolscout_client.models import (
    AddedServer,
    AuthorizationLink,
    Category,
    Conversation,
    CoreTools,
    Discovery,
    DiscoveryOptions,
    ExampleSource,
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
    RegistryFields,
    RegistryServer,
    Rule,
    Rules,
    Run,
    Server,
    ServerChanges,
    ServerFields,
    SharedServer,
    SharedServerChanges,
    SharingFields,
    Tag,
    Tool,
    ToolChange,
    ToolChanges,
    ToolExamples,
    ToolFilter,
    Transport,
    User,
    UserChanges,
    render_keep,
)
from toolscout_client.retries import Request, Sleep, Steps
from toolscout_client.transport import FetchPage, Resource, TransportT, endpoint, make_request, paginated

TOOL_TIMEOUT_S = 60.0
"""How long a tool may run by default, as in Toolscout's settings."""
_EXTRA_TIMEOUT_S = 30.0
RUN_TIMEOUT_S = 300.0
_FIRST_POLL_S = 0.05
_MAX_POLL_S = 1.0


def _render_options(query: str | None, options: DiscoveryOptions) -> Json:
    body: Json = {"query": query, **options}
    return body if body.get("keep") is None else body | {"keep": render_keep(body["keep"])}


class ChatResource(Resource[TransportT]):
    """What a chat backend calls for each message, and checks of the service."""

    @endpoint
    def discover(self, query: str | None = None, **options: Unpack[DiscoveryOptions]) -> Steps[Discovery]:
        """Return the few tools that a message, or recent `messages`, need, with definitions for the model."""
        body = _render_options(query, options)
        # without `turn`, a second request is the next turn, and its answer lacks the tools of the first
        counts_turns = isinstance(options.get("keep"), Conversation) and options.get("turn") is None
        return self._fetch(Discovery, make_request("POST /discover", json=body, retry_safe=not counts_turns))

    @endpoint
    def why(self, tool: str, query: str | None = None, **options: Unpack[DiscoveryOptions]) -> Steps[list[Reason]]:
        """Explain why a discovery does, or does not, return a tool: its key, its name or `SERVER.TOOL`. There is one
        `Reason` for each tool of that name."""
        body = {"tool": tool, **_render_options(query, options)}
        return self._fetch_list(Reason, make_request("POST /discover/why", json=body, retry_safe=True))

    @endpoint
    def execute(
        self,
        tool_key: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        *,
        tool_call: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        project_id: str | None = None,
        discovery_id: str | None = None,
        conversation_id: str | None = None,
        idempotency_key: str | None = None,
        confirmation_token: str | None = None,
    ) -> Steps[Execution]:
        """Run a tool once: by its key, or by the model's tool call in OpenAI's or Anthropic's format.

        A request whose answer was lost is sent again with the same idempotency key, and Toolscout returns the outcome
        of the first one. `discovery_id` is the discovery that returned the tool: a success teaches that the tool was
        right for its message. `conversation_id` is the `Conversation` in which the tool is called: it stays there for
        longer. Releases up to 0.2.0 reject both.

        Raises `ConfirmationRequired` if the tool is destructive and the operator wants such calls confirmed: let the
        user confirm it, and send the same call with the error's `token` as `confirmation_token`.
        """
        body = {"tool_key": tool_key, "arguments": arguments, "tool_call": tool_call, "project_id": project_id}
        body |= {} if discovery_id is None else {"discovery_id": discovery_id}
        body |= {} if conversation_id is None else {"conversation_id": conversation_id}
        body |= {} if confirmation_token is None else {"confirmation_token": confirmation_token}
        request = make_request(
            "POST /execute",
            json=body if timeout is None else body | {"timeout_ms": round(timeout * 1000)},
            headers={"Idempotency-Key": idempotency_key or uuid.uuid4().hex},
            timeout=(timeout or TOOL_TIMEOUT_S) + _EXTRA_TIMEOUT_S,
            retry_safe=True,
        )
        return self._fetch(Execution, request)

    @endpoint
    def feedback(
        self, discovery_id: str, tool_key: str, outcome: Outcome, *, conversation_id: str | None = None
    ) -> Steps[None]:
        """Report what became of a discovered tool, and in which `Conversation` it was called."""
        body = {"discovery_id": discovery_id, "tool_key": tool_key, "outcome": outcome}
        body |= {} if conversation_id is None else {"conversation_id": conversation_id}
        return self._send_without_result(make_request("POST /feedback", json=body))

    @endpoint
    def health(self) -> Steps[Health]:
        """Check that the process answers."""
        return self._fetch(Health, make_request("GET /healthz"))

    @endpoint
    def ready(self) -> Steps[Health]:
        """Check that the database answers too. Raise `Unavailable` otherwise."""
        return self._fetch(Health, make_request("GET /readyz"))

    @endpoint
    def request(
        self, method: str, path: str, *, json: Any = None, params: Mapping[str, Any] | None = None
    ) -> Steps[httpx.Response]:
        """Call any other endpoint, with the same errors and retries."""
        return self._send(Request(method, path, json, params or {}, retry_safe=method == "GET"))


class _RunResource(Resource[TransportT]):
    def _get_run(self, run_id: str) -> Steps[Run]:
        return self._fetch(Run, make_request("GET /runs/{}", run_id))

    def _wait_until_ended(self, run: Run, timeout: float) -> Steps[Run]:
        """Poll, because a proxy could cut off a single long request."""
        pause_s, deadline = _FIRST_POLL_S, time.monotonic() + timeout
        while not run.ended and time.monotonic() < deadline:
            yield Sleep(pause_s)
            pause_s = min(pause_s * 1.5, _MAX_POLL_S)
            run = yield from self._get_run(run.id)
        return run


class Runs(_RunResource[TransportT]):
    @endpoint
    def get(self, run_id: str) -> Steps[Run]:
        return self._get_run(run_id)

    @endpoint
    def wait(self, run_id: str, timeout: float = RUN_TIMEOUT_S) -> Steps[Run]:
        """Wait until the run has ended, and check its `state`. After `timeout` seconds it is returned as it is."""
        run = yield from self._get_run(run_id)
        return (yield from self._wait_until_ended(run, timeout))


class Conversations(Resource[TransportT]):
    """Conversations whose tools Toolscout remembers; see `Conversation`."""

    @endpoint
    def delete(self, conversation_id: str) -> Steps[None]:
        """Forget the tools of a conversation that has ended. Raises `NotFound` if none are remembered."""
        return self._send_without_result(make_request("DELETE /conversations/{}", conversation_id))


class Servers(_RunResource[TransportT]):
    @endpoint
    def create(self, name: str, transport: Transport, **fields: Unpack[ServerFields]) -> Steps[Server]:
        """Register a server. A server with a URL is indexed at once; a `push` server gets its tools by `push_tools`."""
        return self._fetch(Server, make_request("POST /servers", json={"name": name, "transport": transport, **fields}))

    @endpoint
    def add_from_registry(self, registry_name: str, **fields: Unpack[RegistryFields]) -> Steps[AddedServer]:
        """Register a server of the operator's MCP registry. Raise `InvalidInput`, whose `errors` name each required
        header and variable that is missing."""
        request = make_request("POST /servers/from-registry", json={"registry_name": registry_name, **fields})
        return self._fetch(AddedServer, request)

    @paginated
    def list(self) -> FetchPage[Server]:
        """Iterate over the servers by name. A generator: pages are fetched when they are needed."""
        return self._fetch_pages(Server, make_request("GET /servers"))

    @endpoint
    def get(self, server_id: str) -> Steps[Server]:
        return self._fetch(Server, make_request("GET /servers/{}", server_id))

    @endpoint
    def update(self, server_id: str, **changes: Unpack[ServerChanges]) -> Steps[Server]:
        return self._fetch(Server, make_request("PATCH /servers/{}", server_id, json=changes))

    @endpoint
    def delete(self, server_id: str) -> Steps[None]:
        return self._send_without_result(make_request("DELETE /servers/{}", server_id))

    @endpoint
    def connect(self, server_id: str, redirect_url: str | None = None) -> Steps[AuthorizationLink]:
        """Begin a sign-in to the server and return the page to open in the user's browser.

        The browser is sent to `redirect_url` in the end, whose origin the operator must have allowed.
        """
        body = {} if redirect_url is None else {"redirect_url": redirect_url}
        return self._fetch(AuthorizationLink, make_request("POST /servers/{}/connect", server_id, json=body))

    @endpoint
    def disconnect(self, server_id: str) -> Steps[None]:
        """Sign out of the server: Toolscout revokes and deletes its tokens."""
        return self._send_without_result(make_request("DELETE /servers/{}/connection", server_id))

    @endpoint
    def set_credentials(self, server_id: str, headers: Mapping[str, str]) -> Steps[Server]:
        """Replace the headers that Toolscout sends to the server, such as a token that the backend has obtained."""
        return self._fetch(Server, make_request("PUT /servers/{}/credentials", server_id, json={"headers": headers}))

    @endpoint
    def delete_credentials(self, server_id: str) -> Steps[None]:
        """Delete the stored headers. The server and its tools stay."""
        return self._send_without_result(make_request("DELETE /servers/{}/credentials", server_id))

    @endpoint
    def push_tools(
        self, server_id: str, tools: Sequence[Json], *, wait: bool = False, force: bool = False
    ) -> Steps[Run]:
        """Replace the server's tools by these MCP tools. With `wait` the returned run has ended: check its `state`."""
        request = make_request("PUT /servers/{}/tools", server_id, json={"tools": tools}, params={"force": force})
        return self._start_run(request, wait=wait)

    @endpoint
    def reindex(self, server_id: str, *, wait: bool = False, force: bool = False) -> Steps[Run]:
        """List the server's tools again. With `wait` the returned run has ended: check its `state`."""
        return self._start_run(make_request("POST /servers/{}/reindex", server_id, params={"force": force}), wait=wait)

    @endpoint
    def reindex_all(self, *, force: bool = False) -> Steps[Sequence[Run]]:
        return self._fetch_list(Run, make_request("POST /reindex", params={"force": force}))

    @paginated
    def runs(self, server_id: str) -> FetchPage[Run]:
        """Iterate over the runs, newest first. A generator: pages are fetched when they are needed."""
        return self._fetch_pages(Run, make_request("GET /servers/{}/runs", server_id))

    def _start_run(self, request: Request, *, wait: bool) -> Steps[Run]:
        run = yield from self._fetch(Run, request)
        return (yield from self._wait_until_ended(run, RUN_TIMEOUT_S)) if wait else run


class Registry(Resource[TransportT]):
    """The operator's MCP registry. To register a server of it, call `servers.add_from_registry`."""

    @paginated
    def search(self, query: str = "") -> FetchPage[RegistryServer]:
        """Iterate over the servers whose name contains the query. A generator: pages are fetched when they are
        needed."""
        return self._fetch_pages(
            RegistryServer, make_request("GET /registry/servers", params={"q": query, "limit": 20})
        )

    @endpoint
    def get(self, name: str) -> Steps[RegistryServer]:
        """Return the server of this name, such as `io.github.user/weather`."""
        namespace, _, rest = name.partition("/")
        return self._fetch(RegistryServer, make_request("GET /registry/servers/{}/{}", namespace, rest))


class Tools(Resource[TransportT]):
    @paginated
    def list(self, **filters: Unpack[ToolFilter]) -> FetchPage[Tool]:
        """Iterate over matching tools, by server and name. A generator: pages are fetched when they are needed."""
        return self._fetch_pages(Tool, make_request("GET /tools", params=filters))

    @endpoint
    def get(self, tool_id: str) -> Steps[Tool]:
        return self._fetch(Tool, make_request("GET /tools/{}", tool_id))

    @endpoint
    def update(self, tool_id: str, **changes: Unpack[ToolChanges]) -> Steps[Tool]:
        """Change the switch, tags or pin, or write texts of your own in place of the server's."""
        return self._fetch(Tool, make_request("PATCH /tools/{}", tool_id, json=changes))

    @endpoint
    def approve(self, tool_id: str, definition_hash: str | None = None) -> Steps[Tool]:
        """Approve a changed definition. Raise `Conflict` if a hash is given and the definition has another one."""
        return self._fetch(
            Tool, make_request("POST /tools/{}/approve", tool_id, params={"definition_hash": definition_hash})
        )

    @paginated
    def history(self, tool_id: str) -> FetchPage[ToolChange]:
        """Iterate over the changes of the definition, newest first. A generator, as `list` is."""
        return self._fetch_pages(ToolChange, make_request("GET /tools/{}/history", tool_id))

    @endpoint
    def examples(self, tool_id: str) -> Steps[ToolExamples]:
        """Return the messages that a person wrote for the tool, and how many examples were learnt from use."""
        return self._fetch(ToolExamples, make_request("GET /tools/{}/examples", tool_id))

    @endpoint
    def replace_examples(self, tool_id: str, messages: Sequence[str]) -> Steps[ToolExamples]:
        """Replace the messages that a person wrote for the tool. What was learnt from use stays."""
        if isinstance(messages, str):  # a sequence of its characters
            raise TypeError("messages must be a list of strings, not one string")
        request = make_request("PUT /tools/{}/examples", tool_id, json={"messages": list(messages)})
        return self._fetch(ToolExamples, request)

    @endpoint
    def forget_examples(self, tool_id: str, source: ExampleSource | None = None) -> Steps[None]:
        """Forget the examples of the tool: of one source, or all."""
        return self._send_without_result(make_request("DELETE /tools/{}/examples", tool_id, params={"source": source}))

    @endpoint
    def forget_all_examples(self, source: ExampleSource | None = None) -> Steps[None]:
        """Forget the examples of all tools of the user: of one source, or all."""
        return self._send_without_result(make_request("DELETE /examples", params={"source": source}))

    @endpoint
    def tags(self, project_id: str | None = None) -> Steps[Sequence[Tag]]:
        return self._fetch_list(Tag, make_request("GET /tags", params={"project_id": project_id}))

    @endpoint
    def core(self) -> Steps[CoreTools]:
        """Return the core tools, which every discovery includes."""
        return self._fetch(CoreTools, make_request("GET /core-tools"))

    @endpoint
    def replace_core(self, tools: Sequence[Json]) -> Steps[CoreTools]:
        """Replace the core tools by these MCP tools. With an admin key and no user, they apply to all users."""
        return self._fetch(CoreTools, make_request("PUT /core-tools", json={"tools": tools}))


class Categories(Resource[TransportT]):
    @endpoint
    def list(self, project_id: str | None = None) -> Steps[Sequence[Category]]:
        """Return the categories of visible tools, those with the most tools first."""
        return self._fetch_list(Category, make_request("GET /categories", params={"project_id": project_id}))

    @endpoint
    def get(self, category_id: str) -> Steps[Category]:
        return self._fetch(Category, make_request("GET /categories/{}", category_id))

    @endpoint
    def rename(self, category_id: str, name: str | None) -> Steps[Category]:
        """Give a category a name of your own. None restores the automatic one."""
        return self._fetch(Category, make_request("PATCH /categories/{}", category_id, json={"name": name}))


class RulesResource(Resource[TransportT]):
    @endpoint
    def get(self) -> Steps[Rules]:
        return self._fetch(Rules, make_request("GET /rules"))

    @endpoint
    def put(self, rules: Sequence[Rule]) -> Steps[Rules]:
        """Replace all rules by these, in this order."""
        return self._fetch(Rules, make_request("PUT /rules", json={"rules": rules}))

    @endpoint
    def preview(self, rules: Sequence[Rule], *, project_id: str | None = None, changed: bool = False) -> Steps[Preview]:
        """Return what rules would do for the user or a project. `changed`: only tools whose visibility changes."""
        body, params = {"rules": rules, "project_id": project_id}, {"changed": changed}
        return self._fetch(Preview, make_request("POST /rules/preview", json=body, params=params, retry_safe=True))


class Projects(Resource[TransportT]):
    @endpoint
    def create(self, name: str, **fields: Unpack[ProjectFields]) -> Steps[Project]:
        return self._fetch(Project, make_request("POST /projects", json={"name": name, **fields}))

    @paginated
    def list(self) -> FetchPage[Project]:
        """Iterate over the projects. A generator: pages are fetched when they are needed."""
        return self._fetch_pages(Project, make_request("GET /projects"))

    @endpoint
    def get(self, project_id: str) -> Steps[Project]:
        return self._fetch(Project, make_request("GET /projects/{}", project_id))

    @endpoint
    def update(self, project_id: str, **changes: Unpack[ProjectChanges]) -> Steps[Project]:
        return self._fetch(Project, make_request("PATCH /projects/{}", project_id, json=changes))

    @endpoint
    def delete(self, project_id: str) -> Steps[None]:
        """Delete the project and its keys."""
        return self._send_without_result(make_request("DELETE /projects/{}", project_id))


class Users(Resource[TransportT]):
    """For administrators."""

    @endpoint
    def create(self, user_id: str, name: str | None = None) -> Steps[User]:
        return self._fetch(User, make_request("POST /users", json={"id": user_id, "name": name}))

    @paginated
    def list(self) -> FetchPage[User]:
        """Iterate over the users by id. A generator: pages are fetched when they are needed."""
        return self._fetch_pages(User, make_request("GET /users"))

    @endpoint
    def get(self, user_id: str) -> Steps[User]:
        return self._fetch(User, make_request("GET /users/{}", user_id))

    @endpoint
    def update(self, user_id: str, **changes: Unpack[UserChanges]) -> Steps[User]:
        return self._fetch(User, make_request("PATCH /users/{}", user_id, json=changes))

    @endpoint
    def delete(self, user_id: str) -> Steps[None]:
        return self._send_without_result(make_request("DELETE /users/{}", user_id))


class SharedServers(Resource[TransportT]):
    """Servers that many users share, for administrators."""

    @endpoint
    def create(self, name: str, transport: Transport, **fields: Unpack[SharingFields]) -> Steps[SharedServer]:
        """Register a server for `everyone`, for `groups` or for `user_ids`. Members get it within seconds."""
        body = {"name": name, "transport": transport, **fields}
        return self._fetch(SharedServer, make_request("POST /shared-servers", json=body))

    @paginated
    def list(self) -> FetchPage[SharedServer]:
        """Iterate over the shared servers by name. A generator: pages are fetched when they are needed."""
        return self._fetch_pages(SharedServer, make_request("GET /shared-servers"))

    @endpoint
    def get(self, server_id: str) -> Steps[SharedServer]:
        return self._fetch(SharedServer, make_request("GET /shared-servers/{}", server_id))

    @endpoint
    def update(self, server_id: str, **changes: Unpack[SharedServerChanges]) -> Steps[SharedServer]:
        return self._fetch(SharedServer, make_request("PATCH /shared-servers/{}", server_id, json=changes))

    @endpoint
    def delete(self, server_id: str) -> Steps[None]:
        """Delete the server and the copies of all members."""
        return self._send_without_result(make_request("DELETE /shared-servers/{}", server_id))

    @endpoint
    def reindex(self, server_id: str, *, force: bool = False) -> Steps[Run]:
        """List the server's tools again; what has changed reaches the members."""
        return self._fetch(Run, make_request("POST /shared-servers/{}/reindex", server_id, params={"force": force}))


class Keys(Resource[TransportT]):
    """For administrators."""

    @endpoint
    def create(self, kind: KeyKind, **fields: Unpack[KeyFields]) -> Steps[Key]:
        """Create a key. Only this response contains the `key` itself."""
        expiry = fields.get("expires_at")
        body = {"kind": kind, **fields, "expires_at": expiry and expiry.isoformat()}
        return self._fetch(Key, make_request("POST /keys", json=body))

    @paginated
    def list(self) -> FetchPage[Key]:
        """Iterate over the keys' records. A generator: pages are fetched when they are needed."""
        return self._fetch_pages(Key, make_request("GET /keys"))

    @endpoint
    def revoke(self, key_id: str) -> Steps[None]:
        return self._send_without_result(make_request("DELETE /keys/{}", key_id))
