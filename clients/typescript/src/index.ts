/** The TypeScript client of Toolscout: find the few tools that a chat message needs, and run those that the model calls. */

export { Toolscout } from "./client.js";
export {
  ArgumentsInvalid,
  AuthorizationRequired,
  ConfirmationRequired,
  Conflict,
  ConnectionFailed,
  Forbidden,
  InvalidInput,
  NotFound,
  RateLimited,
  ToolFailed,
  ToolscoutError,
  TryLater,
  Unauthenticated,
  Unavailable,
} from "./errors.js";
export * from "./models.js";
export type { components, operations, paths } from "./openapi.js";
export { collect, type List, type RunOptions } from "./resources.js";
export type { ConnectionOptions, PlainRequest, RequestOptions } from "./transport.js";
