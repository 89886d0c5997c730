/**
 * The errors that the client throws, by what a caller does about them.
 *
 *     ToolscoutError              any other error
 *     ├── ConnectionFailed        no answer from Toolscout; `outcome` says whether the request may have been processed
 *     ├── InvalidInput            400, 413, 415, 422: the request is invalid; `errors` lists the reasons
 *     │   └── ArgumentsInvalid    the arguments do not match the tool's input schema: tell the model
 *     ├── Unauthenticated         401: the key is missing or not valid
 *     ├── Forbidden               403: the key lacks the permission
 *     ├── AuthorizationRequired   403: the user must sign in to the tool's server first; show `authorizationUrl`
 *     ├── NotFound                404: it does not exist, or belongs to another user; for a tool: tell the model
 *     ├── Conflict                409: it already exists, or has changed since
 *     │   └── ConfirmationRequired  let the user confirm the call, then send it again with `token`
 *     ├── TryLater                try again after `retryAfter` seconds
 *     │   ├── RateLimited         429
 *     │   └── Unavailable         503
 *     └── ToolFailed              502, 504: the tool failed; `outcome` is `unknown` if it may have run
 *
 * An aborted request throws the reason of its signal, an `AbortError` by default, and none of these.
 */

import type { components } from "./openapi.js";

type Problem = components["schemas"]["Problem"];

/** Whether what was asked for may have happened. */
export type Outcome = "failed" | "unknown";

export interface ErrorDetails {
  code: string;
  status?: number | null;
  requestId?: string | null;
  errors?: Record<string, unknown>[] | null;
  outcome?: string | null;
  failureCause?: string | null;
  server?: string | null;
  tool?: string | null;
  choices?: Record<string, unknown>[] | null;
  retryAfter?: number | null;
  authorizationUrl?: string | null;
  confirmationToken?: string | null;
  expiresAt?: string | null;
}

/** `code` is stable, `message` is for people. `String(error)` has both and can be logged or shown to a model. */
export class ToolscoutError extends Error {
  override readonly name: string = "ToolscoutError";
  readonly code: string;
  /** The HTTP status; null if there was no response. */
  readonly status: number | null;
  readonly requestId: string | null;
  /** What is wrong with each field of the request. */
  readonly errors: Record<string, unknown>[];
  readonly outcome: Outcome | null;
  /** A stable word (the API's `cause`) if the tool's server could not be reached; then nothing was run. */
  readonly failureCause: string | null;
  /** The server and the tool that a failed call is about, once Toolscout has found them. */
  readonly server: string | null;
  readonly tool: string | null;
  /** The `tool_key` and `name` of each tool that an ambiguous name may mean. */
  readonly choices: Record<string, unknown>[];
  /** In seconds. */
  readonly retryAfter: number | null;
  readonly authorizationUrl: string | null;
  readonly confirmationToken: string | null;
  /** When the link or the token expires, in ISO 8601. */
  readonly expiresAt: string | null;

  constructor(message: string, details: ErrorDetails, options?: ErrorOptions) {
    super(message, options);
    this.code = details.code;
    this.status = details.status ?? null;
    this.requestId = details.requestId ?? null;
    this.errors = details.errors ?? [];
    this.outcome = (details.outcome as Outcome | null | undefined) ?? null;
    this.failureCause = details.failureCause ?? null;
    this.server = details.server ?? null;
    this.tool = details.tool ?? null;
    this.choices = details.choices ?? [];
    this.retryAfter = details.retryAfter ?? null;
    this.authorizationUrl = details.authorizationUrl ?? null;
    this.confirmationToken = details.confirmationToken ?? null;
    this.expiresAt = details.expiresAt ?? null;
  }

  override toString(): string {
    return `${this.code}: ${this.message}`;
  }
}

/** `outcome` is `failed` if the request was not processed, `unknown` if it may have been. */
export class ConnectionFailed extends ToolscoutError {
  override readonly name: string = "ConnectionFailed";
}

export class InvalidInput extends ToolscoutError {
  override readonly name: string = "InvalidInput";
}

export class ArgumentsInvalid extends InvalidInput {
  override readonly name: string = "ArgumentsInvalid";
}

export class Unauthenticated extends ToolscoutError {
  override readonly name: string = "Unauthenticated";
}

export class Forbidden extends ToolscoutError {
  override readonly name: string = "Forbidden";
}

/**
 * Nothing was run. `authorizationUrl` is the page on which the user signs in, until `expiresAt`; it is null if Toolscout
 * does not know its own address. Once the user has signed in, the same call runs.
 */
export class AuthorizationRequired extends ToolscoutError {
  override readonly name: string = "AuthorizationRequired";
}

export class NotFound extends ToolscoutError {
  override readonly name: string = "NotFound";
}

export class Conflict extends ToolscoutError {
  override readonly name: string = "Conflict";
}

/** The tool says that it is destructive, and nothing was run. Only the same call redeems the token, once. */
export class ConfirmationRequired extends Conflict {
  override readonly name: string = "ConfirmationRequired";

  /** For `execute(…, { confirmationToken: error.token })`, until `expiresAt`. */
  get token(): string {
    return this.confirmationToken ?? "";
  }
}

export class TryLater extends ToolscoutError {
  override readonly name: string = "TryLater";
}

export class RateLimited extends TryLater {
  override readonly name: string = "RateLimited";
}

export class Unavailable extends TryLater {
  override readonly name: string = "Unavailable";
}

export class ToolFailed extends ToolscoutError {
  override readonly name: string = "ToolFailed";
}

type ErrorClass = typeof ToolscoutError;

const BY_CODE = new Map<string, ErrorClass>([
  ["TOOL_VALIDATION_ERROR", ArgumentsInvalid],
  ["AUTHORIZATION_REQUIRED", AuthorizationRequired],
  ["CONFIRMATION_REQUIRED", ConfirmationRequired],
  ["SERVER_CONNECTION_ERROR", ToolFailed],
  ["TOOL_EXECUTION_ERROR", ToolFailed],
  ["TOOL_EXECUTION_TIMEOUT", ToolFailed],
]);
const BY_STATUS = new Map<number, ErrorClass>([
  [400, InvalidInput],
  [401, Unauthenticated],
  [403, Forbidden],
  [404, NotFound],
  [409, Conflict],
  [413, InvalidInput],
  [415, InvalidInput],
  [422, InvalidInput],
  [429, RateLimited],
  // without a problem body: from a proxy in front of Toolscout, which cannot know the outcome
  [502, ConnectionFailed],
  [503, Unavailable],
  [504, ConnectionFailed],
]);
const DEFAULT_OUTCOMES = new Map<ErrorClass, Outcome>([
  [ToolFailed, "failed"],
  [ConnectionFailed, "unknown"],
]);

/** Return the error that a response without success means. */
export async function errorFromResponse(response: Response): Promise<ToolscoutError> {
  const problem = await parseProblem(response);
  const code = problem.code ?? `status_${response.status}`;
  const ErrorType = BY_CODE.get(code) ?? BY_STATUS.get(response.status) ?? ToolscoutError;
  return new ErrorType(problem.detail ?? `answered with ${response.status} ${response.statusText}`.trim(), {
    code,
    status: response.status,
    requestId: problem.request_id ?? response.headers.get("X-Request-Id"),
    errors: problem.errors ?? null,
    outcome: problem.outcome ?? DEFAULT_OUTCOMES.get(ErrorType) ?? null,
    failureCause: problem.cause ?? null,
    server: problem.server ?? null,
    tool: problem.tool ?? null,
    choices: problem.choices ?? null,
    retryAfter: parseRetryAfter(response.headers.get("Retry-After")),
    authorizationUrl: problem.authorization_url ?? null,
    confirmationToken: problem.confirmation_token ?? null,
    expiresAt: problem.expires_at ?? null,
  });
}

/** Return an empty object if the error does not come from Toolscout. */
async function parseProblem(response: Response): Promise<Partial<Problem>> {
  const problem: unknown = await response.json().catch(() => null);
  return typeof problem === "object" && problem !== null && "code" in problem ? (problem as Problem) : {};
}

/** Return the seconds; a date is ignored. */
function parseRetryAfter(text: string | null): number | null {
  return text !== null && /^\d+$/.test(text) ? Number(text) : null;
}
