/**
 * Tools for the Vercel AI SDK 7: `streamText({ tools: toAiSdkTools(found, toolscout, { jsonSchema }) })`.
 *
 * The SDK is not imported; its `jsonSchema` is given.
 */

import type { Toolscout } from "./client.js";
import { AuthorizationRequired, ConfirmationRequired } from "./errors.js";
import type { Discovery, ExecuteOptions, ToolResult } from "./models.js";
import type { RequestOptions } from "./transport.js";

/** What a tool returns, for the user interface: the MCP server's own result, or where the user must sign in first. */
export type AiSdkToolOutput = ToolResult | SignInRequired;

export interface SignInRequired {
  signInRequired: { server: string | null; url: string | null };
}

/** What the SDK passes to `execute`, as far as it is used here. */
export interface AiSdkCall {
  toolCallId: string;
  messages: readonly object[];
  abortSignal?: AbortSignal | undefined;
}

export interface AiSdkTool<Schema = unknown> {
  type: "dynamic";
  description: string;
  inputSchema: Schema;
  /** Returns an `AiSdkToolOutput`, or what your executor returns. */
  execute: AiSdkExecutor;
  toModelOutput: typeof toModelOutput;
}

export type AiSdkExecutor = (input: unknown, call: AiSdkCall) => Promise<unknown>;

export type AiSdkTools<Schema = unknown> = Record<string, AiSdkTool<Schema>>;

/** Also options of `execute` that apply to every call, such as `conversationId`, `projectId` and `timeoutMs`. */
export interface AiSdkOptions<Schema>
  extends Omit<ExecuteOptions, "idempotencyKey" | "confirmationToken" | "discoveryId"> {
  /** The function of this name from `ai`. */
  jsonSchema: (schema: object) => Schema;
  /**
   * Your functions for tools that Toolscout finds and does not run, by the names that the model uses: core tools, and
   * the tools of servers of type `push`. Those without a function are left out.
   */
  executors?: Record<string, AiSdkExecutor>;
}

/**
 * Return the discovered tools by the names that the model uses. They run through Toolscout.
 *
 * Discover with `format: "openai"`, whose names every provider accepts. A call of a tool that the operator wants
 * confirmed runs once the user has approved it in the chat: see `requireApproval`.
 */
export function toAiSdkTools<Schema>(
  found: Discovery<"openai">,
  toolscout: Toolscout,
  options: AiSdkOptions<Schema>,
): AiSdkTools<Schema> {
  const { jsonSchema, executors = {}, ...limits } = options;
  const execute = async (toolKey: string, input: unknown, call: AiSdkCall): Promise<AiSdkToolOutput> => {
    const approvalId = findApproval(call);
    const request = { discoveryId: found.discovery_id, ...limits, signal: call.abortSignal };
    return approvalId === null
      ? run(toolscout, toolKey, input as object, request)
      : runApproved(toolscout, toolKey, input as object, { ...request, idempotencyKey: approvalId });
  };
  const tools = found.definitions.flatMap(({ function: { name, description = "", parameters } }) => {
    const toolKey = found.keyOf(name);
    const own = Object.hasOwn(executors, name) ? executors[name] : undefined;
    if (own === undefined && !runsInToolscout(found, toolKey)) {
      return [];
    }
    const tool: AiSdkTool<Schema> = {
      type: "dynamic",
      description,
      inputSchema: jsonSchema(parameters),
      execute: own ?? ((input, call) => execute(toolKey, input, call)),
      toModelOutput,
    };
    return [[name, tool] as const];
  });
  return Object.fromEntries(tools);
}

/** Core tools have no server, and Toolscout has no connection to a server of type `push`. */
function runsInToolscout(found: Discovery<"openai">, toolKey: string): boolean {
  const { server_id, server_status } = found.tools.find((tool) => tool.tool_key === toolKey) ?? {};
  return server_id != null && server_status !== "push";
}

/**
 * Return which tools say that they are destructive, for `toolApproval` of the SDK: the user is asked before each call.
 *
 * Also set the SDK's `experimental_toolApprovalSecret`: a call that the messages say is approved is confirmed, and the
 * messages come from the browser. Without a secret, the SDK believes them.
 */
export function requireApproval(found: Discovery<"openai">): Record<string, "user-approval"> {
  const destructive = found.tools.filter(({ tool }) => {
    const { annotations } = tool as { annotations?: { destructiveHint?: unknown } | null };
    // as in Toolscout: anything else than null or false counts
    return annotations?.destructiveHint != null && annotations.destructiveHint !== false;
  });
  return Object.fromEntries(destructive.map(({ alias }) => [alias, "user-approval"]));
}

/** Return the result, or a sign-in as an output. Throw anything else: the SDK tells the model, as `String(error)`. */
async function run(
  toolscout: Toolscout,
  toolKey: string,
  input: object,
  options: ExecuteOptions & RequestOptions,
): Promise<AiSdkToolOutput> {
  try {
    return (await toolscout.execute(toolKey, input, options)).result;
  } catch (error) {
    if (error instanceof AuthorizationRequired) {
      return { signInRequired: { server: error.server, url: error.authorizationUrl } };
    }
    throw error;
  }
}

/** Confirm the call if Toolscout asks for it. One approval runs it once: its id is the idempotency key. */
async function runApproved(
  toolscout: Toolscout,
  toolKey: string,
  input: object,
  options: ExecuteOptions & RequestOptions & { idempotencyKey: string },
): Promise<AiSdkToolOutput> {
  try {
    return await run(toolscout, toolKey, input, options);
  } catch (error) {
    if (error instanceof ConfirmationRequired) {
      return run(toolscout, toolKey, input, { ...options, confirmationToken: error.token });
    }
    throw error;
  }
}

interface Part {
  type?: unknown;
  toolCallId?: unknown;
  approvalId?: unknown;
  approved?: unknown;
}

/** Return the id of the user's approval of this very call, by the messages, which the SDK has checked. */
function findApproval({ messages, toolCallId }: AiSdkCall): string | null {
  const parts = messages.flatMap((message) => {
    const { content } = message as { content?: unknown };
    return Array.isArray(content) ? (content as Part[]) : [];
  });
  const request = parts.find((part) => part.type === "tool-approval-request" && part.toolCallId === toolCallId);
  const isApproved = parts.some(
    (part) =>
      part.type === "tool-approval-response" && part.approvalId === request?.approvalId && part.approved === true,
  );
  return isApproved && typeof request?.approvalId === "string" ? request.approvalId : null;
}

/**
 * Turn the output of a tool into what the model reads: its texts, else its structured content. Images and other files
 * become a note such as `[image/png, 200 kB]`: some providers would send them as base64 text.
 *
 * Also for results of tools that are no longer there: give `convertToModelMessages` a tool with this function for each
 * name in the messages, or the model reads the whole output. The output may come from a browser and have any shape.
 */
export function toModelOutput({ output }: { output: unknown }): { type: "text" | "error-text"; value: string } {
  if (typeof output === "string") {
    return { type: "text", value: output };
  }
  const { signInRequired, content, structuredContent, isError } = asObject(output);
  if (signInRequired !== undefined) {
    const { server } = asObject(signInRequired);
    const name = typeof server === "string" ? server : "the server";
    const value = `Nothing was run: the user must sign in to ${name} first, and sees a link for it.`;
    return { type: "error-text", value };
  }
  const blocks = Array.isArray(content) ? content.map(readBlock) : [];
  const hasText = blocks.some(({ isText }) => isText);
  const structured = hasText || structuredContent == null ? [] : [JSON.stringify(structuredContent)];
  const texts = [...structured, ...blocks.map(({ text }) => text)];
  const value = texts.length > 0 ? texts.join("\n") : JSON.stringify(content ?? output ?? null);
  return { type: isError === true ? "error-text" : "text", value };
}

/** Return the text of a content block, or what it is instead. */
function readBlock(block: unknown): { text: string; isText: boolean } {
  const { type, text, data, mimeType, uri, resource } = asObject(block);
  if (type === "text" && typeof text === "string") {
    return { text, isText: true };
  }
  if (type === "resource") {
    const { text: content, blob, mimeType: kind, uri: address } = asObject(resource);
    return typeof content === "string"
      ? { text: content, isText: true }
      : { text: describeFile(kind ?? address, blob), isText: false };
  }
  return { text: describeFile(type === "resource_link" ? uri : (mimeType ?? type), data), isText: false };
}

function describeFile(name: unknown, base64: unknown): string {
  const size = typeof base64 === "string" ? `, ${Math.ceil((base64.length * 3) / 4_000)} kB` : "";
  return `[${typeof name === "string" ? name : "file"}${size}]`;
}

function asObject(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}
