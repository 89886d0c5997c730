/** Which requests are sent again, and when. Nothing here sends or waits. */

import { Conflict, ConnectionFailed, type ToolscoutError, TryLater } from "./errors.js";

export const FIRST_PAUSE_MS = 100;
export const MAX_PAUSE_MS = 5_000;
/** A longer `Retry-After` is thrown at once instead of being waited for. */
export const MAX_RETRY_AFTER_S = 30;

/**
 * How an attempt failed: Toolscout `answered` with an error, the connection was `refused` before anything was sent, the
 * answer was `lost` on its way, or none came in time (`timeout`).
 */
export type FailureKind = "answered" | "refused" | "lost" | "timeout";

export interface Failure {
  kind: FailureKind;
  error: ToolscoutError;
}

export interface RetryRules {
  retries: number;
  /** Sending the request twice does no harm: it only reads, or it carries an idempotency key. */
  retrySafe: boolean;
  /** How long to wait for the first request of two, if the answer to it was lost and it is still running. */
  waitMs: number;
}

export class RetryPolicy {
  readonly #retrySafe: boolean;
  readonly #deadline: number;
  #retriesLeft: number;
  #pauseMs = FIRST_PAUSE_MS;
  #answerLost = false;

  constructor(rules: RetryRules) {
    this.#retriesLeft = rules.retries;
    this.#retrySafe = rules.retrySafe;
    this.#deadline = Date.now() + rules.waitMs;
  }

  /** Return how long to wait before the next attempt, in milliseconds. Throw if the request must not be sent again. */
  nextPause({ kind, error }: Failure): number {
    if (this.#answerLost && isStillRunning(error)) {
      this.#checkDeadline(error);
    } else if (this.#retriesLeft > 0 && this.#mayRetry(kind, error)) {
      this.#retriesLeft -= 1;
      this.#answerLost ||= kind === "lost";
    } else {
      throw error;
    }
    return this.#nextJitter() + (error.retryAfter ?? 0) * 1000;
  }

  #mayRetry(kind: FailureKind, error: ToolscoutError): boolean {
    if (error instanceof TryLater) {
      return error.retryAfter !== null && error.retryAfter <= MAX_RETRY_AFTER_S;
    }
    return kind === "refused" || (kind === "lost" && this.#retrySafe);
  }

  /** Let the first request run until the deadline. */
  #checkDeadline(conflict: ToolscoutError): void {
    if (Date.now() > this.#deadline) {
      const message = "the connection was lost, and the first request has not ended since";
      throw new ConnectionFailed(message, { code: "connection_failed", outcome: "unknown" }, { cause: conflict });
    }
  }

  /** Double the pause each time, with jitter, so that clients that failed together do not return together. */
  #nextJitter(): number {
    const upper = this.#pauseMs;
    this.#pauseMs = Math.min(this.#pauseMs * 2, MAX_PAUSE_MS);
    return upper / 2 + (Math.random() * upper) / 2;
  }
}

/** After a lost answer, whether the first request has arrived and is still running. Other conflicts are answers. */
function isStillRunning(error: ToolscoutError): boolean {
  return error instanceof Conflict && error.code === "conflict" && error.choices.length === 0;
}
