/** The client: what a chat backend calls for each message, reports, and the way to everything else. */

import {
  type AuditEvent,
  type AuditFilter,
  type CatalogSearch,
  type CatalogTool,
  type Decision,
  type DecisionFilter,
  type DiscoverOptions,
  Discovery,
  type Evaluation,
  type ExecuteCall,
  type ExecuteOptions,
  Execution,
  type FeedbackOutcome,
  type Format,
  type Health,
  type LabelledMessage,
  type Readiness,
  type Reason,
  renderKeep,
  type Selection,
  type ServerImport,
  type Stats,
  type StatsStep,
  type Time,
} from "./models.js";
import {
  Categories,
  Conversations,
  Keys,
  type List,
  Projects,
  Registry,
  RulesResource,
  Runs,
  Servers,
  SharedServers,
  Tools,
  Users,
} from "./resources.js";
import { type Body, type Query, toWire } from "./routes.js";
import { type ConnectionOptions, type PlainRequest, type RequestOptions, Transport } from "./transport.js";

/** How long a tool may run by default, as in Toolscout's settings. */
const TOOL_TIMEOUT_MS = 60_000;
const EXTRA_TIMEOUT_MS = 30_000;
const EVALUATION_TIMEOUT_MS = 300_000;
/** The API takes no longer one. */
const MAX_TOOL_TIMEOUT_MS = 3_600_000;

/**
 * `new Toolscout({ url: "http://127.0.0.1:8000", key })`.
 *
 * Options are named in camelCase; answers have the names of the API. Every method takes a `signal` and a `timeoutMs`.
 */
export class Toolscout {
  readonly #transport: Transport;

  constructor(options: ConnectionOptions | Transport) {
    this.#transport = options instanceof Transport ? options : new Transport(options);
  }

  /** Return a client that acts for this user, with a service or an admin key. */
  forUser(userId: string): Toolscout {
    return new Toolscout(this.#transport.withUser(userId));
  }

  /** Return the few tools that a message, or recent `messages`, need, with definitions for the model. */
  async discover<F extends Format = "mcp">(
    query: string | (DiscoverOptions<F> & RequestOptions),
    options: DiscoverOptions<F> & RequestOptions = {},
  ): Promise<Discovery<F>> {
    const { body, ...request } = makeSearch(query, options);
    // Without `turn`, a second request is the next turn of the conversation, and its answer lacks the tools of the first.
    const countsTurns = body.keep != null && "conversation_id" in body.keep && body.turn == null;
    return new Discovery<F>(
      await this.#transport.call("POST /discover", [], { body, retrySafe: !countsTurns, ...request }),
    );
  }

  /**
   * Explain why a discovery does, or does not, return a tool: its key, its name or `SERVER.TOOL`. There is one reason
   * for each tool of that name.
   */
  why(
    tool: string,
    query: string | (DiscoverOptions & RequestOptions),
    options: DiscoverOptions & RequestOptions = {},
  ): Promise<Reason[]> {
    const { body, ...request } = makeSearch(query, options);
    return this.#transport.list("POST /discover/why", [], { body: { tool, ...body }, retrySafe: true, ...request });
  }

  /**
   * Run a tool once: `execute(key, arguments)`, or `execute({ toolCall })` with the model's tool call in OpenAI's or
   * Anthropic's format.
   *
   * A request whose answer was lost is sent again with the same idempotency key, and Toolscout returns the outcome of
   * the first one. `discoveryId` is the discovery that returned the tool: a success teaches that the tool was right for
   * its message. `conversationId` is the conversation in which the tool is called: it stays there for longer.
   *
   * Throws `ConfirmationRequired` if the tool is destructive and the operator wants such calls confirmed: let the user
   * confirm it, and send the same call with the error's `token` as `confirmationToken`.
   */
  execute(toolKey: string, args?: object | null, options?: ExecuteOptions & RequestOptions): Promise<Execution>;
  execute(call: ExecuteCall & ExecuteOptions & RequestOptions): Promise<Execution>;
  async execute(
    call: string | (ExecuteCall & ExecuteOptions & RequestOptions),
    args: object | null = null,
    options: ExecuteOptions & RequestOptions = {},
  ): Promise<Execution> {
    const given = typeof call === "string" ? { toolKey: call, arguments: args, ...options } : call;
    const { signal, timeoutMs, idempotencyKey = makeKey(), onProgress, ...fields } = given;
    const body = toWire(fields) as Body<"POST /execute">;
    const answer = await this.#transport.call("POST /execute", [], {
      body: timeoutMs === undefined ? body : { ...body, timeout_ms: clampToolTimeout(timeoutMs) },
      headers: { "Idempotency-Key": idempotencyKey },
      timeoutMs: (timeoutMs ?? TOOL_TIMEOUT_MS) + EXTRA_TIMEOUT_MS,
      retrySafe: true,
      signal,
      onProgress: onProgress as ((data: unknown) => void) | undefined,
    });
    return new Execution(answer);
  }

  /**
   * Report what became of a discovered tool that you ran yourself, or that a discovered tool was irrelevant.
   * `conversationId` is the conversation in which it was called: it stays there for longer.
   */
  feedback(
    discoveryId: string,
    toolKey: string,
    outcome: FeedbackOutcome,
    { conversationId = null, ...options }: RequestOptions & { conversationId?: string | null } = {},
  ): Promise<void> {
    const conversation = conversationId === null ? {} : { conversation_id: conversationId };
    const body = { discovery_id: discoveryId, tool_key: toolKey, outcome, ...conversation };
    return this.#transport.callWithoutResult("POST /feedback", [], { body, ...options });
  }

  get servers(): Servers {
    return new Servers(this.#transport);
  }

  get sharedServers(): SharedServers {
    return new SharedServers(this.#transport);
  }

  get registry(): Registry {
    return new Registry(this.#transport);
  }

  get runs(): Runs {
    return new Runs(this.#transport);
  }

  get tools(): Tools {
    return new Tools(this.#transport);
  }

  get categories(): Categories {
    return new Categories(this.#transport);
  }

  get rules(): RulesResource {
    return new RulesResource(this.#transport);
  }

  get conversations(): Conversations {
    return new Conversations(this.#transport);
  }

  get projects(): Projects {
    return new Projects(this.#transport);
  }

  get users(): Users {
    return new Users(this.#transport);
  }

  get keys(): Keys {
    return new Keys(this.#transport);
  }

  /**
   * Register the servers of an MCP client's configuration, such as a parsed `mcp.json`. `values` are those of its
   * placeholders, by name. What cannot be imported is in `skipped`, and does not stop the others.
   */
  importServers(
    config: object,
    { values = {}, ...options }: RequestOptions & { values?: Record<string, string> } = {},
  ): Promise<ServerImport> {
    const body = { config: config as Record<string, unknown>, values };
    return this.#transport.call("POST /servers/import", [], { body, ...options });
  }

  /** Search the given tools, which are not stored, for one query or for several at once. */
  catalogSearch(
    query: string | string[],
    tools: CatalogTool[],
    {
      context = null,
      maxResults = null,
      ...options
    }: RequestOptions & { context?: string | null; maxResults?: number | null } = {},
  ): Promise<CatalogSearch> {
    const body = { query: [query].flat(), tools, context, max_results: maxResults };
    return this.#transport.call("POST /catalog/search", [], { body, retrySafe: true, ...options });
  }

  /**
   * Measure how well labelled messages find their tools. `suggest` also lists tools that are hard to tell apart or too
   * poorly described to be found.
   */
  evaluate(
    items: LabelledMessage[],
    options: RequestOptions & { limit?: number; projectId?: string | null; suggest?: boolean } = {},
  ): Promise<Evaluation> {
    const { signal, timeoutMs = EVALUATION_TIMEOUT_MS, ...fields } = options;
    const body = { items, ...toWire(fields) };
    return this.#transport.call("POST /eval", [], { body, retrySafe: true, signal, timeoutMs });
  }

  /**
   * Return discoveries over time, by default of the last 24 hours, with the most used tools and those that were never
   * found. With an admin key and no user: the sums of all users.
   */
  stats(options: RequestOptions & { since?: Time; until?: Time; step?: StatsStep } = {}): Promise<Stats> {
    const { signal, timeoutMs, ...query } = options;
    return this.#transport.call("GET /stats", [], { query: query as Query<"GET /stats">, signal, timeoutMs });
  }

  /** Iterate over audit events, newest first. */
  audit(filter: AuditFilter = {}, options: RequestOptions = {}): List<AuditEvent> {
    const query = toWire(filter) as Query<"GET /audit">;
    return this.#transport.iterate("GET /audit", [], { query, ...options });
  }

  /** Iterate over searches and the tools that they chose, newest first. */
  decisions(filter: DecisionFilter = {}, options: RequestOptions = {}): List<Decision> {
    const query = toWire(filter) as Query<"GET /decisions">;
    return this.#transport.iterate("GET /decisions", [], { query, ...options });
  }

  /**
   * Iterate over logged messages and the tools selected for them, newest first. Empty unless the user's setting
   * `selection_log` is on.
   */
  selections(filter: { since?: Time; until?: Time } = {}, options: RequestOptions = {}): List<Selection> {
    return this.#transport.iterate("GET /selections", [], { query: filter as Query<"GET /selections">, ...options });
  }

  /** Delete the user's logged messages. The setting stays as it is. */
  deleteSelections(options: RequestOptions = {}): Promise<void> {
    return this.#transport.callWithoutResult("DELETE /selections", [], options);
  }

  /** Check that the process answers. */
  health(options: RequestOptions = {}): Promise<Health> {
    return this.#transport.call("GET /healthz", [], options);
  }

  /** Check that the database answers too. Throw `Unavailable` otherwise. */
  ready(options: RequestOptions = {}): Promise<Readiness> {
    return this.#transport.call("GET /readyz", [], options);
  }

  /** Call any other endpoint, with the same errors and retries. */
  request(method: string, path: string, options: PlainRequest = {}): Promise<Response> {
    return this.#transport.send(method, path, options);
  }
}

/** `Infinity` would become null in JSON, which is the default. */
function clampToolTimeout(timeoutMs: number): number {
  return Math.min(Math.round(timeoutMs), MAX_TOOL_TIMEOUT_MS);
}

/** `crypto.randomUUID` does not exist on pages that came over plain HTTP. */
function makeKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

type SearchRequest = RequestOptions & { body: Body<"POST /discover"> };

function makeSearch(
  query: string | (DiscoverOptions & RequestOptions),
  options: DiscoverOptions & RequestOptions,
): SearchRequest {
  const given = typeof query === "string" ? { query, ...options } : { ...query, ...options };
  const { signal, timeoutMs, keep, ...fields } = given;
  const body = { ...toWire(fields), ...(keep == null ? {} : { keep: renderKeep(keep) }) };
  return { body: body as Body<"POST /discover">, signal, timeoutMs };
}
