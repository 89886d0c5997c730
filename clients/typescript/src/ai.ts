/**
 * Tools for the Vercel AI SDK 7: `streamText({ tools: toAiSdkTools(found, toolscout, { jsonSchema }) })`.
 *
 * The SDK is not imported; its `jsonSchema` is given.
 */

import type { Toolscout } from "./client.js";
import { AuthorizationRequired, ConfirmationRequired } from "./errors.js";
import type { Discovery, ExecuteOptions, ToolResult } from "./models.js";

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
  execute: (input: unknown, call: AiSdkCall) => Promise<AiSdkToolOutput>;
  /** Turns the output into what the model reads. */
  toModelOutput: (done: { output: unknown }) => { type: "text" | "error-text"; value: string };
}

export type AiSdkTools<Schema = unknown> = Record<string, AiSdkTool<Schema>>;

/** Also options of `execute` that apply to every call, such as `conversationId`, `projectId` and `timeoutMs`. */
export interface AiSdkOptions<Schema>
  extends Omit<ExecuteOptions, "idempotencyKey" | "confirmationToken" | "discoveryId"> {
  /** The function of this name from `ai`. */
  jsonSchema: (schema: object) => Schema;
}

/**
 * Return the discovered tools by the names that the model uses. They run through Toolscout.
 *
 * Discover with `format: "openai"`, whose names every provider accepts. A call of a tool that the operator wants
 * confirmed runs once the user has approved it in the chat: pass `requireApproval(found)` as `toolApproval`.
 */
export function toAiSdkTools<Schema>(
  found: Discovery<"openai">,
  toolscout: Toolscout,
  options: AiSdkOptions<Schema>,
): AiSdkTools<Schema> {
  const { jsonSchema, ...limits } = options;
  const tools = found.definitions.map(({ function: { name, description = "", parameters } }) => {
    const toolKey = found.keyOf(name);
    const execute = (input: unknown, call: AiSdkCall): Promise<AiSdkToolOutput> => {
      const request = { discoveryId: found.discovery_id, ...limits, signal: call.abortSignal };
      const run = (confirmationToken?: string): Promise<AiSdkToolOutput> =>
        toolscout
          .execute(toolKey, input as object, confirmationToken === undefined ? request : { ...request, confirmationToken })
          .then(({ result }) => result);
      return run().catch((error: unknown) => recover(error, call, run));
    };
    const tool: AiSdkTool<Schema> = {
      type: "dynamic",
      description,
      inputSchema: jsonSchema(parameters),
      execute,
      toModelOutput,
    };
    return [name, tool] as const;
  });
  return Object.fromEntries(tools);
}

/** Return which tools say that they are destructive, for `toolApproval` of the SDK: the user is asked before each call. */
export function requireApproval(found: Discovery<"openai">): Record<string, "user-approval"> {
  const destructive = found.tools.filter(({ tool }) => {
    const { annotations } = tool as { annotations?: { destructiveHint?: boolean } | null };
    return annotations?.destructiveHint === true;
  });
  return Object.fromEntries(destructive.map(({ alias }) => [alias, "user-approval"]));
}

/**
 * Confirm a call that the user has approved, and return a sign-in as an output. Throw anything else: the SDK tells the
 * model, as `String(error)`.
 */
async function recover(
  error: unknown,
  call: AiSdkCall,
  run: (confirmationToken: string) => Promise<AiSdkToolOutput>,
): Promise<AiSdkToolOutput> {
  if (error instanceof ConfirmationRequired && wasApproved(call)) {
    return run(error.token);
  }
  if (error instanceof AuthorizationRequired) {
    return { signInRequired: { server: error.server, url: error.authorizationUrl } };
  }
  throw error;
}

interface Part {
  type?: unknown;
  toolCallId?: unknown;
  approvalId?: unknown;
  approved?: unknown;
}

/** Whether the user has approved this very call, by the messages, which the SDK has checked. */
function wasApproved({ messages, toolCallId }: AiSdkCall): boolean {
  const parts = messages.flatMap((message) => {
    const { content } = message as { content?: unknown };
    return Array.isArray(content) ? (content as Part[]) : [];
  });
  const request = parts.find((part) => part.type === "tool-approval-request" && part.toolCallId === toolCallId);
  return (
    request !== undefined &&
    parts.some(
      (part) =>
        part.type === "tool-approval-response" && part.approvalId === request.approvalId && part.approved === true,
    )
  );
}

function toModelOutput({ output }: { output: unknown }): { type: "text" | "error-text"; value: string } {
  const result = output as AiSdkToolOutput;
  if ("signInRequired" in result) {
    const { server } = result.signInRequired as SignInRequired["signInRequired"];
    const value = `Nothing was run: the user must sign in to ${server ?? "the server"} first, and sees a link for it.`;
    return { type: "error-text", value };
  }
  const { content = [], structuredContent, isError } = result as ToolResult;
  const texts = content.flatMap((block) => (block.type === "text" ? [block.text ?? ""] : []));
  const value = texts.length > 0 ? texts.join("\n") : JSON.stringify(structuredContent ?? content);
  return { type: isError === true ? "error-text" : "text", value };
}
