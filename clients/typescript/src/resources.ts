/** The endpoints by what they are about: `toolscout.servers`, `toolscout.tools` and so on. */

import { iterateReports } from "./events.js";
import {
  type AddedServer,
  type AuthorizationLink,
  type Category,
  type CoreTools,
  type CreatedKey,
  type ExampleSource,
  hasEnded,
  type Key,
  type KeyFields,
  type KeyKind,
  type Preview,
  type Project,
  type ProjectChanges,
  type ProjectFields,
  type RegistryFields,
  type RegistryServer,
  type Rule,
  type Rules,
  type Run,
  type Server,
  type ServerChanges,
  type ServerFields,
  type SharedServer,
  type SharedServerChanges,
  type SharingFields,
  type Tag,
  type Tool,
  type ToolChange,
  type ToolChanges,
  type ToolDetails,
  type ToolExamples,
  type ToolFilter,
  type Transport as ServerTransport,
  type User,
  type UserChanges,
} from "./models.js";
import { type Answer, toWire } from "./routes.js";
import { type RequestOptions, sleep, type Transport } from "./transport.js";

/** Iterates over all items and fetches the next page when it is needed. */
export type List<T> = AsyncGenerator<T, void, undefined>;

const RUN_TIMEOUT_MS = 300_000;
const FIRST_POLL_MS = 50;
const MAX_POLL_MS = 1_000;
const REGISTRY_PAGE_SIZE = 20;

/** Read a list to its end. */
export async function collect<T>(list: AsyncIterable<T>): Promise<T[]> {
  const items: T[] = [];
  for await (const item of list) {
    items.push(item);
  }
  return items;
}

class Resource {
  protected readonly transport: Transport;

  constructor(transport: Transport) {
    this.transport = transport;
  }
}

export interface RunOptions extends RequestOptions {
  /** Return when the run has ended, after five minutes at the latest: check its `state`. */
  wait?: boolean;
  /** Embed all tools again, and accept an empty list. */
  force?: boolean;
}

export class Runs extends Resource {
  get(runId: string, options: RequestOptions = {}): Promise<Run> {
    return this.transport.call("GET /runs/{run_id}", [runId], options);
  }

  /** Wait until the run has ended, and check its `state`. After `timeoutMs` (5 minutes) it is returned as it is. */
  async wait(runId: string, { timeoutMs = RUN_TIMEOUT_MS, signal }: RequestOptions = {}): Promise<Run> {
    // polls, because a proxy could cut off a single long request
    const deadline = Date.now() + timeoutMs;
    let run = await this.get(runId, { signal });
    for (let pause = FIRST_POLL_MS; !hasEnded(run) && Date.now() < deadline; pause = Math.min(pause * 1.5, MAX_POLL_MS)) {
      await sleep(pause, signal);
      run = await this.get(runId, { signal });
    }
    return run;
  }

  /**
   * Iterate over the run: as it is, after each change, and at its end. A connection that breaks is opened again, as for
   * every read.
   */
  events(runId: string, { signal, timeoutMs }: RequestOptions = {}): List<Run> {
    const follow = async (onProgress: (run: Run) => void, ended: AbortSignal): Promise<Run> => {
      const request = { signal: ended, timeoutMs, onProgress: onProgress as (data: unknown) => void };
      return (await this.transport.call("GET /runs/{run_id}/events", [runId], request)) as unknown as Run;
    };
    return iterateReports(follow, signal);
  }
}

export class Servers extends Resource {
  /** Register a server. A server with a URL is indexed at once; a `push` server gets its tools by `pushTools`. */
  create(
    name: string,
    transport: ServerTransport,
    fields: ServerFields = {},
    options: RequestOptions = {},
  ): Promise<Server> {
    return this.transport.call("POST /servers", [], { body: { name, transport, ...toWire(fields) }, ...options });
  }

  /**
   * Register a server of the operator's MCP registry. Throw `InvalidInput`, whose `errors` name each required header
   * and variable that is missing.
   */
  addFromRegistry(
    registryName: string,
    fields: RegistryFields = {},
    options: RequestOptions = {},
  ): Promise<AddedServer> {
    const body = { registry_name: registryName, ...toWire(fields) };
    return this.transport.call("POST /servers/from-registry", [], { body, ...options });
  }

  /** Iterate over the servers by name. */
  list(options: RequestOptions = {}): List<Server> {
    return this.transport.iterate("GET /servers", [], options);
  }

  get(serverId: string, options: RequestOptions = {}): Promise<Server> {
    return this.transport.call("GET /servers/{server_id}", [serverId], options);
  }

  update(serverId: string, changes: ServerChanges, options: RequestOptions = {}): Promise<Server> {
    return this.transport.call("PATCH /servers/{server_id}", [serverId], { body: toWire(changes), ...options });
  }

  delete(serverId: string, options: RequestOptions = {}): Promise<void> {
    return this.transport.callWithoutResult("DELETE /servers/{server_id}", [serverId], options);
  }

  /**
   * Begin a sign-in to the server and return the page to open in the user's browser. The browser is sent to
   * `redirectUrl` in the end, whose origin the operator must have allowed.
   */
  connect(
    serverId: string,
    { redirectUrl = null, ...options }: RequestOptions & { redirectUrl?: string | null } = {},
  ): Promise<AuthorizationLink> {
    const body = redirectUrl === null ? {} : { redirect_url: redirectUrl };
    return this.transport.call("POST /servers/{server_id}/connect", [serverId], { body, ...options });
  }

  /** Sign out of the server: Toolscout revokes and deletes its tokens. */
  disconnect(serverId: string, options: RequestOptions = {}): Promise<void> {
    return this.transport.callWithoutResult("DELETE /servers/{server_id}/connection", [serverId], options);
  }

  /** Replace the headers that Toolscout sends to the server, such as a token that the backend has obtained. */
  setCredentials(serverId: string, headers: Record<string, string>, options: RequestOptions = {}): Promise<Server> {
    return this.transport.call("PUT /servers/{server_id}/credentials", [serverId], { body: { headers }, ...options });
  }

  /** Delete the stored headers. The server and its tools stay. */
  deleteCredentials(serverId: string, options: RequestOptions = {}): Promise<void> {
    return this.transport.callWithoutResult("DELETE /servers/{server_id}/credentials", [serverId], options);
  }

  /** Replace the server's tools by these MCP tools. */
  pushTools(serverId: string, tools: readonly object[], options: RunOptions = {}): Promise<Run> {
    const { wait, force = false, ...rest } = options;
    const request = { body: { tools: tools as Record<string, unknown>[] }, query: { force }, ...rest };
    return this.#follow(this.transport.call("PUT /servers/{server_id}/tools", [serverId], request), options);
  }

  /** List the server's tools again. */
  reindex(serverId: string, options: RunOptions = {}): Promise<Run> {
    const { wait, force = false, ...rest } = options;
    const request = { query: { force }, ...rest };
    return this.#follow(this.transport.call("POST /servers/{server_id}/reindex", [serverId], request), options);
  }

  /** List the tools of all servers again. */
  reindexAll({ force = false, ...options }: RequestOptions & { force?: boolean } = {}): Promise<Run[]> {
    return this.transport.list("POST /reindex", [], { query: { force }, ...options });
  }

  /** Iterate over the index runs of a server, newest first. */
  runs(serverId: string, options: RequestOptions = {}): List<Run> {
    return this.transport.iterate("GET /servers/{server_id}/runs", [serverId], options);
  }

  async #follow(started: Promise<Run>, { wait = false, signal }: RunOptions): Promise<Run> {
    const run = await started;
    return wait ? new Runs(this.transport).wait(run.id, { signal }) : run;
  }
}

/** The operator's MCP registry. To register a server of it, call `servers.addFromRegistry`. */
export class Registry extends Resource {
  /** Iterate over the servers whose name contains the query. */
  search(query = "", options: RequestOptions = {}): List<RegistryServer> {
    const request = { query: { q: query, limit: REGISTRY_PAGE_SIZE }, ...options };
    return this.transport.iterate("GET /registry/servers", [], request);
  }

  /** Return the server of this name, such as `io.github.user/weather`. */
  get(name: string, options: RequestOptions = {}): Promise<RegistryServer> {
    const slash = name.indexOf("/");
    const ids: [string, string] = [name.slice(0, Math.max(slash, 0)), name.slice(slash + 1)];
    return this.transport.call("GET /registry/servers/{namespace}/{name}", ids, options);
  }
}

export class Tools extends Resource {
  /** Iterate over matching tools, by server and name. `limit` is the page size; all pages are read. */
  list(filter: ToolFilter = {}, options: RequestOptions = {}): List<Tool> {
    return this.transport.iterate("GET /tools", [], { query: toWire(filter), ...options });
  }

  get(toolId: string, options: RequestOptions = {}): Promise<ToolDetails> {
    return this.transport.call("GET /tools/{tool_id}", [toolId], options);
  }

  /** Change the switch, tags or pin, or write texts of your own in place of the server's. */
  update(
    toolId: string,
    changes: ToolChanges,
    options: RequestOptions = {},
  ): Promise<Answer<"PATCH /tools/{tool_id}">> {
    return this.transport.call("PATCH /tools/{tool_id}", [toolId], { body: toWire(changes), ...options });
  }

  /** Approve a changed definition. Throw `Conflict` if a hash is given and the definition has another one. */
  approve(
    toolId: string,
    { definitionHash = null, ...options }: RequestOptions & { definitionHash?: string | null } = {},
  ): Promise<Answer<"POST /tools/{tool_id}/approve">> {
    const query = { definition_hash: definitionHash };
    return this.transport.call("POST /tools/{tool_id}/approve", [toolId], { query, ...options });
  }

  /** Iterate over the changes of the definition, newest first. */
  history(toolId: string, options: RequestOptions = {}): List<ToolChange> {
    return this.transport.iterate("GET /tools/{tool_id}/history", [toolId], options);
  }

  /** Return the messages that a person wrote for the tool, and how many examples were learnt from use. */
  examples(toolId: string, options: RequestOptions = {}): Promise<ToolExamples> {
    return this.transport.call("GET /tools/{tool_id}/examples", [toolId], options);
  }

  /** Replace the messages that a person wrote for the tool. What was learnt from use stays. */
  replaceExamples(toolId: string, messages: string[], options: RequestOptions = {}): Promise<ToolExamples> {
    return this.transport.call("PUT /tools/{tool_id}/examples", [toolId], { body: { messages }, ...options });
  }

  /** Forget the examples of the tool: of one source, or all. */
  forgetExamples(
    toolId: string,
    { source = null, ...options }: RequestOptions & { source?: ExampleSource | null } = {},
  ): Promise<void> {
    const request = { query: { source }, ...options };
    return this.transport.callWithoutResult("DELETE /tools/{tool_id}/examples", [toolId], request);
  }

  /** Forget the examples of all tools of the user: of one source, or all. */
  forgetAllExamples({ source = null, ...options }: RequestOptions & { source?: ExampleSource | null } = {}): Promise<void> {
    return this.transport.callWithoutResult("DELETE /examples", [], { query: { source }, ...options });
  }

  tags({ projectId = null, ...options }: RequestOptions & { projectId?: string | null } = {}): Promise<Tag[]> {
    return this.transport.list("GET /tags", [], { query: { project_id: projectId }, ...options });
  }

  /** Return the core tools, which every discovery includes. */
  core(options: RequestOptions = {}): Promise<CoreTools> {
    return this.transport.call("GET /core-tools", [], options);
  }

  /** Replace the core tools by these MCP tools. With an admin key and no user, they apply to all users. */
  replaceCore(tools: readonly object[], options: RequestOptions = {}): Promise<CoreTools> {
    const body = { tools: tools as Record<string, unknown>[] };
    return this.transport.call("PUT /core-tools", [], { body, ...options });
  }
}

export class Categories extends Resource {
  /** Return the categories of visible tools, those with the most tools first. */
  list({ projectId = null, ...options }: RequestOptions & { projectId?: string | null } = {}): Promise<Category[]> {
    return this.transport.list("GET /categories", [], { query: { project_id: projectId }, ...options });
  }

  get(categoryId: string, options: RequestOptions = {}): Promise<Category> {
    return this.transport.call("GET /categories/{category_id}", [categoryId], options);
  }

  /** Give a category a name of your own. `null` restores the automatic one. */
  rename(categoryId: string, name: string | null, options: RequestOptions = {}): Promise<Category> {
    return this.transport.call("PATCH /categories/{category_id}", [categoryId], { body: { name }, ...options });
  }
}

export class RulesResource extends Resource {
  get(options: RequestOptions = {}): Promise<Rules> {
    return this.transport.call("GET /rules", [], options);
  }

  /** Replace all rules by these, in this order. */
  put(rules: Rule[], options: RequestOptions = {}): Promise<Answer<"PUT /rules">> {
    return this.transport.call("PUT /rules", [], { body: { rules }, ...options });
  }

  /** Return what rules would do for the user or a project. `changed`: only tools whose visibility changes. */
  preview(
    rules: Rule[],
    {
      projectId = null,
      changed = false,
      ...options
    }: RequestOptions & { projectId?: string | null; changed?: boolean } = {},
  ): Promise<Preview> {
    const request = { body: { rules, project_id: projectId }, query: { changed }, retrySafe: true, ...options };
    return this.transport.call("POST /rules/preview", [], request);
  }
}

export class Projects extends Resource {
  create(name: string, fields: ProjectFields = {}, options: RequestOptions = {}): Promise<Project> {
    return this.transport.call("POST /projects", [], { body: { name, ...toWire(fields) }, ...options });
  }

  list(options: RequestOptions = {}): List<Project> {
    return this.transport.iterate("GET /projects", [], options);
  }

  get(projectId: string, options: RequestOptions = {}): Promise<Project> {
    return this.transport.call("GET /projects/{project_id}", [projectId], options);
  }

  update(projectId: string, changes: ProjectChanges, options: RequestOptions = {}): Promise<Project> {
    return this.transport.call("PATCH /projects/{project_id}", [projectId], { body: toWire(changes), ...options });
  }

  /** Delete the project and its keys. */
  delete(projectId: string, options: RequestOptions = {}): Promise<void> {
    return this.transport.callWithoutResult("DELETE /projects/{project_id}", [projectId], options);
  }
}

/** For administrators. */
export class Users extends Resource {
  create(userId: string, { name = null, ...options }: RequestOptions & { name?: string | null } = {}): Promise<User> {
    return this.transport.call("POST /users", [], { body: { id: userId, name }, ...options });
  }

  /** Iterate over the users by id. */
  list(options: RequestOptions = {}): List<User> {
    return this.transport.iterate("GET /users", [], options);
  }

  get(userId: string, options: RequestOptions = {}): Promise<User> {
    return this.transport.call("GET /users/{user_id}", [userId], options);
  }

  update(userId: string, changes: UserChanges, options: RequestOptions = {}): Promise<User> {
    return this.transport.call("PATCH /users/{user_id}", [userId], { body: toWire(changes), ...options });
  }

  delete(userId: string, options: RequestOptions = {}): Promise<void> {
    return this.transport.callWithoutResult("DELETE /users/{user_id}", [userId], options);
  }
}

/** Servers that many users share, for administrators. */
export class SharedServers extends Resource {
  /** Register a server for `everyone`, for `groups` or for `userIds`. Members get it within seconds. */
  create(
    name: string,
    transport: ServerTransport,
    fields: SharingFields = {},
    options: RequestOptions = {},
  ): Promise<SharedServer> {
    const body = { name, transport, ...toWire(fields) };
    return this.transport.call("POST /shared-servers", [], { body, ...options });
  }

  /** Iterate over the shared servers by name. */
  list(options: RequestOptions = {}): List<SharedServer> {
    return this.transport.iterate("GET /shared-servers", [], options);
  }

  get(serverId: string, options: RequestOptions = {}): Promise<SharedServer> {
    return this.transport.call("GET /shared-servers/{server_id}", [serverId], options);
  }

  update(serverId: string, changes: SharedServerChanges, options: RequestOptions = {}): Promise<SharedServer> {
    const request = { body: toWire(changes), ...options };
    return this.transport.call("PATCH /shared-servers/{server_id}", [serverId], request);
  }

  /** Delete the server and the copies of all members. */
  delete(serverId: string, options: RequestOptions = {}): Promise<void> {
    return this.transport.callWithoutResult("DELETE /shared-servers/{server_id}", [serverId], options);
  }

  /** List the server's tools again; what has changed reaches the members. */
  reindex(serverId: string, { force = false, ...options }: RequestOptions & { force?: boolean } = {}): Promise<Run> {
    const request = { query: { force }, ...options };
    return this.transport.call("POST /shared-servers/{server_id}/reindex", [serverId], request);
  }
}

/** Conversations whose tools Toolscout remembers, by your own ids: `keep: { conversationId }`. */
export class Conversations extends Resource {
  /** Forget the tools of a conversation that has ended. Throws `NotFound` if none are remembered. */
  delete(conversationId: string, options: RequestOptions = {}): Promise<void> {
    return this.transport.callWithoutResult("DELETE /conversations/{conversation_id}", [conversationId], options);
  }
}

/** For administrators. */
export class Keys extends Resource {
  /** Create a key. Only this answer contains the `key` itself. */
  create(kind: KeyKind, fields: KeyFields = {}, options: RequestOptions = {}): Promise<CreatedKey> {
    const { expiresAt, ...others } = fields;
    const expires_at = expiresAt instanceof Date ? expiresAt.toISOString() : (expiresAt ?? null);
    return this.transport.call("POST /keys", [], { body: { kind, ...toWire(others), expires_at }, ...options });
  }

  /** Iterate over the keys' records. */
  list(options: RequestOptions = {}): List<Key> {
    return this.transport.iterate("GET /keys", [], options);
  }

  revoke(keyId: string, options: RequestOptions = {}): Promise<void> {
    return this.transport.callWithoutResult("DELETE /keys/{key_id}", [keyId], options);
  }
}
