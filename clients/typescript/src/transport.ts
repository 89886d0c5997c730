/** Sends requests with `fetch`: the key, the user, timeouts, retries and what an answer must look like. */

import { ConnectionFailed, errorFromResponse, ToolscoutError } from "./errors.js";
import { isEventStream, MEDIA_TYPE, ProgressHandlerError, SILENCE_MS, takeFinalEvent } from "./events.js";
import { type Failure, RetryPolicy } from "./retries.js";
import type { Answer, Body, Ids, Item, Query, Route } from "./routes.js";
import { VERSION } from "./version.js";

export interface RequestOptions {
  /** Ends the request, its retries and its pauses. The call throws the signal's reason. */
  signal?: AbortSignal | undefined;
  /** How long to wait for each response, in milliseconds, instead of the client's `timeoutMs`. */
  timeoutMs?: number | undefined;
}

export interface ConnectionOptions {
  /** The address of Toolscout, such as `https://toolscout.example.com`. */
  url: string;
  key: string;
  /** The user that a service or an admin key acts for; see also `forUser`. */
  userId?: string | undefined;
  /** How long to wait for a response: 30 seconds. `execute` and `evaluate` wait longer. */
  timeoutMs?: number | undefined;
  /** How often a request is sent again where that is safe: 3. With 0 it never is. */
  retries?: number | undefined;
  /** Replaces the global `fetch`, such as one with a proxy or in a test. */
  fetch?: typeof globalThis.fetch | undefined;
}

/** A request to any path. `retrySafe` says that sending it twice does no harm, which is true of every GET. */
export interface PlainRequest extends RequestOptions {
  body?: unknown;
  query?: object | undefined;
  headers?: Record<string, string> | undefined;
  retrySafe?: boolean | undefined;
  /**
   * Is called with the data of each `progress` event. The answer is then asked for as a stream of events, and the last
   * event becomes the response. `timeoutMs` is for the first event; each further one may take 45 seconds at least.
   */
  onProgress?: ((data: unknown) => void) | undefined;
}

interface TypedRequest<R extends Route> extends PlainRequest {
  body?: Body<R>;
  query?: Query<R> | undefined;
}

const TIMEOUT_MS = 30_000;
const RETRIES = 3;
const PAGE_SIZE = 200;
/** A longer time would make a timer end at once. */
const MAX_TIMER_MS = 2 ** 31 - 1;

/** What `fetch` of Node.js, Bun and others say if no connection was made. Browsers do not say. */
const REFUSED = new Set([
  "ECONNREFUSED",
  "ENOTFOUND",
  "EAI_AGAIN",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "UND_ERR_CONNECT_TIMEOUT",
  "ConnectionRefused",
]);

export class Transport {
  readonly #options: ConnectionOptions;
  readonly #url: URL;

  constructor(options: ConnectionOptions) {
    this.#options = options;
    this.#url = parseUrl(options.url);
    checkHeader("the key", options.key);
    if (options.userId !== undefined) {
      checkHeader("the user's id", options.userId);
    }
  }

  withUser(userId: string): Transport {
    return new Transport({ ...this.#options, userId });
  }

  /** Call a route and return the JSON of its answer. */
  async call<R extends Route>(route: R, ids: Ids<R>, request: TypedRequest<R> = {}): Promise<Answer<R>> {
    const response = await this.#callRoute(route, ids, request);
    return (await parseObject(response)) as Answer<R>;
  }

  /** Call a route whose answer has no content. */
  async callWithoutResult<R extends Route>(route: R, ids: Ids<R>, request: TypedRequest<R> = {}): Promise<void> {
    await this.#callRoute(route, ids, request);
  }

  /** Return the items of a list that is not divided into pages. */
  async list<R extends Route>(route: R, ids: Ids<R>, request: TypedRequest<R> = {}): Promise<Item<R>[]> {
    return (await this.#fetchPage(route, ids, request)).items;
  }

  /** Iterate over the items of all pages, of the largest size unless the request sets one. */
  async *iterate<R extends Route>(
    route: R,
    ids: Ids<R>,
    request: TypedRequest<R> = {},
  ): AsyncGenerator<Item<R>, void, undefined> {
    let cursor: string | null | undefined;
    do {
      const query = { limit: PAGE_SIZE, ...request.query, cursor } as unknown as Query<R>;
      const page = await this.#fetchPage(route, ids, { ...request, query });
      yield* page.items;
      cursor = page.next_cursor;
    } while (cursor != null);
  }

  /** Send a request, and again where that is safe. Return a response with success, or throw. */
  async send(method: string, path: string, request: PlainRequest = {}): Promise<Response> {
    const { signal, timeoutMs = this.#options.timeoutMs ?? TIMEOUT_MS } = request;
    const policy = new RetryPolicy({
      retries: this.#options.retries ?? RETRIES,
      retrySafe: request.retrySafe ?? method === "GET",
      waitMs: request.timeoutMs ?? 0,
    });
    // before the first attempt, so that a mistake in the request is not taken for a lost answer
    const url = this.#makeUrl(path, request.query);
    const headers = this.#makeHeaders(request);
    const body = request.body === undefined ? null : JSON.stringify(request.body);
    for (;;) {
      signal?.throwIfAborted();
      const outcome = await this.#attempt(url, { method, headers, body }, { ...request, timeoutMs });
      if (outcome instanceof Response) {
        return outcome;
      }
      await sleep(policy.nextPause(outcome), signal);
    }
  }

  #callRoute<R extends Route>(route: R, ids: Ids<R>, request: TypedRequest<R>): Promise<Response> {
    const [method = "", template = ""] = route.split(" ");
    const values = ids as string[];
    let index = 0;
    const path = template.replace(/\{\w+\}/g, () => encodeId(values[index++]));
    return this.send(method, path, request);
  }

  async #fetchPage<R extends Route>(route: R, ids: Ids<R>, request: TypedRequest<R>): Promise<Page<Item<R>>> {
    const response = await this.#callRoute(route, ids, request);
    const page = await parseObject(response);
    if (!Array.isArray(page.items)) {
      throw unreadableAnswer(response);
    }
    return page as unknown as Page<Item<R>>;
  }

  async #attempt(url: URL, init: RequestInit, request: PlainRequest): Promise<Response | Failure> {
    const deadline = startDeadline(request.timeoutMs ?? TIMEOUT_MS, request.signal);
    try {
      const response = await this.#fetchWhole(url, init, request, deadline);
      return response.ok ? response : { kind: "answered", error: await errorFromResponse(response) };
    } catch (error) {
      request.signal?.throwIfAborted();
      if (error instanceof ProgressHandlerError) {
        throw error.cause;
      }
      return this.#describeFailure(error, deadline.isOver());
    } finally {
      deadline.stop();
    }
  }

  /** Return the URL of a path, which might also be a URL of its own: the key is for this address alone. */
  #makeUrl(path: string, query: object = {}): URL {
    const url = new URL(this.#url.pathname.replace(/\/+$/, "") + path, this.#url);
    if (url.origin !== this.#url.origin) {
      throw new TypeError('a path must begin with one slash, such as "/servers"');
    }
    for (const [name, value] of Object.entries(query)) {
      for (const each of Array.isArray(value) ? value : [value]) {
        if (each != null) {
          url.searchParams.append(name, each instanceof Date ? each.toISOString() : String(each));
        }
      }
    }
    return url;
  }

  /** Read the content, too, so that a connection that breaks in the middle of it counts as a lost answer. */
  async #fetchWhole(url: URL, init: RequestInit, request: PlainRequest, deadline: Deadline): Promise<Response> {
    const fetch = this.#options.fetch ?? globalThis.fetch;
    // the key is for this address alone
    const response = await fetch(url, { ...init, redirect: "manual", signal: deadline.signal });
    if (response.type === "opaqueredirect") {
      // a browser hides the status of a redirect
      return new Response(null, { status: 302, statusText: "Redirect" });
    }
    const { onProgress, timeoutMs = TIMEOUT_MS } = request;
    if (onProgress !== undefined && isEventStream(response)) {
      return takeFinalEvent(response, onProgress, () => deadline.restart(Math.max(timeoutMs, SILENCE_MS)));
    }
    const content = await response.arrayBuffer();
    const { status, statusText, headers } = response;
    const whole = new Response(content.byteLength === 0 ? null : content, { status, statusText, headers });
    Object.defineProperty(whole, "url", { value: response.url || url.href });
    return whole;
  }

  #makeHeaders({ headers, body, onProgress }: PlainRequest): Record<string, string> {
    const { key, userId } = this.#options;
    return {
      Accept: onProgress === undefined ? "application/json" : MEDIA_TYPE,
      Authorization: `Bearer ${key}`,
      ...(body === undefined ? {} : { "Content-Type": "application/json" }),
      ...(userId === undefined ? {} : { "X-User-Id": userId }),
      // a browser sends its own
      ...("document" in globalThis ? {} : { "User-Agent": `toolscout-client-typescript/${VERSION}` }),
      ...headers,
    };
  }

  #describeFailure(error: unknown, timedOut: boolean): Failure {
    const { code, message } = findCause(error);
    const kind = timedOut ? "timeout" : REFUSED.has(code) ? "refused" : "lost";
    // Only host and port: the message may be shown to a model, and a URL may contain ids.
    const text = `no answer from ${this.#url.host}: ${timedOut ? "timed out" : message}`;
    const outcome = kind === "refused" ? "failed" : "unknown";
    return { kind, error: new ConnectionFailed(text, { code: "connection_failed", outcome }, { cause: error }) };
  }
}

interface Page<T> {
  items: T[];
  next_cursor?: string | null;
}

function parseUrl(text: string): URL {
  const url = new URL(text);
  if (url.protocol !== "http:" && url.protocol !== "https:") {
    throw new TypeError("the URL of Toolscout must begin with http:// or https://");
  }
  if (url.username !== "" || url.password !== "") {
    throw new TypeError("the URL of Toolscout must not contain a user or a password");
  }
  return url;
}

/** Toolscout's keys and ids of users fit. The value is not in the message: `fetch` would put a bad key into its own. */
function checkHeader(name: string, value: string): void {
  if (!/^[\x21-\x7e]+$/.test(value)) {
    throw new TypeError(`${name} must consist of visible ASCII characters, without spaces and line breaks`);
  }
}

/** Encode an id as one segment of a path, which `..` would not remain. */
function encodeId(id: string | undefined): string {
  if (id === undefined || id === "" || id === "." || id === "..") {
    throw new TypeError(`an id must not be ${id === undefined ? "missing" : JSON.stringify(id)}`);
  }
  return encodeURIComponent(id);
}

export async function parseObject(response: Response): Promise<Record<string, unknown>> {
  const content: unknown = await response.json().catch(() => null);
  if (typeof content !== "object" || content === null || Array.isArray(content)) {
    throw unreadableAnswer(response);
  }
  return content as Record<string, unknown>;
}

/** The address belongs to another service, or to an incompatible version of Toolscout. */
function unreadableAnswer({ url, status }: Response): ToolscoutError {
  const message = `${url} returned a response that is not Toolscout's`;
  return new ToolscoutError(message, { code: "unreadable_answer", status });
}

/** `fetch` of Node.js says only "fetch failed"; its cause says why. */
function findCause(error: unknown): { code: string; message: string } {
  const cause: unknown = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  if (!(cause instanceof Error)) {
    return { code: "", message: String(cause) };
  }
  const code = "code" in cause && typeof cause.code === "string" ? cause.code : "";
  return { code, message: cause.message || code || cause.name };
}

interface Deadline {
  signal: AbortSignal;
  isOver: () => boolean;
  restart: (timeoutMs: number) => void;
  stop: () => void;
}

/** Return a signal that is aborted after a time, or when the caller's is. */
function startDeadline(timeoutMs: number, outer: AbortSignal | undefined): Deadline {
  const controller = new AbortController();
  let over = false;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const restart = (ms: number): void => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      over = true;
      controller.abort();
    }, Math.min(ms, MAX_TIMER_MS));
  };
  restart(timeoutMs);
  const abort = (): void => controller.abort(outer?.reason);
  outer?.addEventListener("abort", abort, { once: true });
  return {
    signal: controller.signal,
    isOver: () => over,
    restart,
    stop: () => {
      clearTimeout(timer);
      outer?.removeEventListener("abort", abort);
    },
  };
}

/** Wait, or throw the signal's reason once it is aborted. */
export function sleep(ms: number, signal?: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const abort = (): void => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, ms);
    if (signal?.aborted) {
      abort();
    } else {
      signal?.addEventListener("abort", abort, { once: true });
    }
  });
}
