import { openai } from "@ai-sdk/openai";
import { type Discovery, Toolscout, ToolscoutError } from "@toolscout/client";
import { requireApproval, toAiSdkTools, toModelOutput } from "@toolscout/client/ai";
import {
  convertToModelMessages,
  createUIMessageStreamResponse,
  getToolName,
  isStepCount,
  isToolUIPart,
  jsonSchema,
  type ModelMessage,
  safeValidateUIMessages,
  streamText,
  toUIMessageStream,
  type ToolSet,
  type UIMessage,
} from "ai";
import { getUserId } from "../../../lib/session.ts";

const MAX_STEPS = 8;

export async function POST(request: Request): Promise<Response> {
  const userId = await getUserId(request);
  if (userId === null) {
    return new Response("Sign in first.", { status: 401 });
  }
  const chat = await readChat(request);
  if (chat === null) {
    return new Response("Send the `id` and the `messages` of a chat.", { status: 400 });
  }
  const { id, messages } = chat;
  const toolscout = connect().forUser(userId);
  const found = await discover(toolscout, id, messages, request.signal);
  if (found === null && messages.at(-1)?.parts.some(isApproved)) {
    return new Response("The approved call cannot run now. Try again later.", { status: 503 });
  }
  const tools = found === null ? {} : toAiSdkTools(found, toolscout, { jsonSchema, conversationId: id });
  const result = streamText({
    model: openai.chat(process.env.MODEL ?? "gpt-5.1"),
    messages: await toModelMessages(messages, tools),
    tools,
    toolApproval: found === null ? {} : requireApproval(found),
    // without it, a browser could make up that the user has approved a call
    experimental_toolApprovalSecret: readSetting("TOOL_APPROVAL_SECRET"),
    stopWhen: isStepCount(MAX_STEPS),
    abortSignal: request.signal,
  });
  return createUIMessageStreamResponse({ stream: toUIMessageStream({ stream: result.stream, tools }) });
}

/**
 * Return what the browser has sent, or null if it is not a chat.
 *
 * The id is the browser's, too. Toolscout keeps the chats of users apart: with the id of another user's chat, a user
 * gets a new chat of their own.
 */
async function readChat(request: Request): Promise<{ id: string; messages: UIMessage[] } | null> {
  const body = (await request.json().catch(() => null)) as { id?: unknown; messages?: unknown } | null;
  const checked = await safeValidateUIMessages({ messages: body?.messages });
  const id = body?.id;
  return checked.success && typeof id === "string" && /^[\w-]{1,128}$/.test(id) ? { id, messages: checked.data } : null;
}

/** The key stays here: only this file uses it, and it runs on the server alone. */
function connect(): Toolscout {
  return new Toolscout({ url: readSetting("TOOLSCOUT_URL"), key: readSetting("TOOLSCOUT_KEY") });
}

function readSetting(name: string): string {
  const value = process.env[name];
  if (!value) {
    throw new Error(`set ${name}, see .env.example`);
  }
  return value;
}

/**
 * Return the tools of this turn: those that the model had before, and what the message needs.
 *
 * A turn is a message of the user. What follows it is not searched for: a request that continues the turn, as after an
 * approval, gets the same tools again.
 */
async function discover(
  toolscout: Toolscout,
  conversationId: string,
  messages: UIMessage[],
  signal: AbortSignal,
): Promise<Discovery<"openai"> | null> {
  const turn = messages.filter(({ role }) => role === "user").length;
  const asked = messages.slice(0, messages.findLastIndex(({ role }) => role === "user") + 1).map(toText);
  try {
    return await toolscout.discover({ messages: asked, format: "openai", keep: { conversationId }, turn }, { signal });
  } catch (error) {
    if (!(error instanceof ToolscoutError)) {
      throw error;
    }
    console.error("this turn has no tools:", String(error)); // a chat without tools is better than none
    return null;
  }
}

function toText({ role, parts }: UIMessage): { role: string; content: string } {
  return { role, content: parts.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n") };
}

/** Results stay what the model has read before, also those of tools that it no longer has. */
function toModelMessages(messages: UIMessage[], tools: ToolSet): Promise<ModelMessage[]> {
  const names = messages.flatMap(({ parts }) => parts.filter(isToolUIPart).map(getToolName));
  const former = Object.fromEntries(names.map((name) => [name, { inputSchema: jsonSchema({}), toModelOutput }]));
  const complete = [...messages.slice(0, -1).map(closeCalls), ...messages.slice(-1)];
  return convertToModelMessages(complete, { tools: { ...former, ...tools }, ignoreIncompleteToolCalls: true });
}

/** An approved call whose answer was lost has no result, without which the SDK refuses every later message. */
function closeCalls(message: UIMessage): UIMessage {
  const errorText = "The answer to this call was lost. It may have run.";
  const parts = message.parts.map((part) =>
    isApproved(part) ? ({ ...part, state: "output-error", errorText } as typeof part) : part,
  );
  return { ...message, parts };
}

function isApproved(part: UIMessage["parts"][number]): boolean {
  return isToolUIPart(part) && part.state === "approval-responded" && part.approval.approved;
}
