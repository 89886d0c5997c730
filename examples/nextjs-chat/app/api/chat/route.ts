import { openai } from "@ai-sdk/openai";
import { type Discovery, Toolscout, ToolscoutError } from "@toolscout/client";
import { requireApproval, toAiSdkTools } from "@toolscout/client/ai";
import {
  convertToModelMessages,
  createUIMessageStreamResponse,
  isStepCount,
  jsonSchema,
  streamText,
  toUIMessageStream,
  type UIMessage,
} from "ai";
import { getUserId } from "../../../lib/session.ts";

const MAX_STEPS = 8;

export async function POST(request: Request): Promise<Response> {
  const userId = await getUserId(request);
  if (userId === null) {
    return new Response("Sign in first.", { status: 401 });
  }
  // The id of the chat comes from the browser. Toolscout keeps the chats of users apart: with the id of another user's
  // chat, a user gets a new chat of their own.
  const { id, messages } = (await request.json()) as { id: string; messages: UIMessage[] };
  const toolscout = connect().forUser(userId);
  const found = await discover(toolscout, id, messages, request.signal);
  const tools = found === null ? {} : toAiSdkTools(found, toolscout, { jsonSchema, conversationId: id });
  const result = streamText({
    model: openai.chat(process.env.MODEL ?? "gpt-5.1"),
    messages: await convertToModelMessages(messages, { tools, ignoreIncompleteToolCalls: true }),
    tools,
    toolApproval: found === null ? {} : requireApproval(found),
    experimental_toolApprovalSecret: process.env.TOOL_APPROVAL_SECRET,
    stopWhen: isStepCount(MAX_STEPS),
    abortSignal: request.signal,
  });
  return createUIMessageStreamResponse({ stream: toUIMessageStream({ stream: result.stream, tools }) });
}

/** The key stays here: only this file uses it, and it runs on the server alone. */
function connect(): Toolscout {
  const { TOOLSCOUT_URL: url, TOOLSCOUT_KEY: key } = process.env;
  if (!url || !key) {
    throw new Error("set TOOLSCOUT_URL and TOOLSCOUT_KEY, see .env.example");
  }
  return new Toolscout({ url, key });
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
