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

/** Each answer says which tools the model had, so that the next turn keeps them. Toolscout checks them again. */
type ChatMessage = UIMessage<{ toolKeys?: string[] }>;

export async function POST(request: Request): Promise<Response> {
  const userId = await getUserId(request);
  if (userId === null) {
    return new Response("Sign in first.", { status: 401 });
  }
  const { messages } = (await request.json()) as { messages: ChatMessage[] };
  const toolscout = connect().forUser(userId);
  const found = await discover(toolscout, messages, request.signal);
  const tools = found === null ? {} : toAiSdkTools(found, toolscout, { jsonSchema });
  const result = streamText({
    model: openai.chat(process.env.MODEL ?? "gpt-5.1"),
    messages: await convertToModelMessages(messages, { tools, ignoreIncompleteToolCalls: true }),
    tools,
    toolApproval: found === null ? {} : requireApproval(found),
    experimental_toolApprovalSecret: process.env.TOOL_APPROVAL_SECRET,
    stopWhen: isStepCount(MAX_STEPS),
    abortSignal: request.signal,
  });
  const stream = toUIMessageStream<typeof tools, ChatMessage>({
    stream: result.stream,
    tools,
    messageMetadata: ({ part }) => (part.type === "start" && found ? { toolKeys: found.toolKeys } : undefined),
  });
  return createUIMessageStreamResponse({ stream });
}

/** The key stays here: only this file uses it, and it runs on the server alone. */
function connect(): Toolscout {
  const { TOOLSCOUT_URL: url, TOOLSCOUT_KEY: key } = process.env;
  if (!url || !key) {
    throw new Error("set TOOLSCOUT_URL and TOOLSCOUT_KEY, see .env.example");
  }
  return new Toolscout({ url, key });
}

/** Return the tools of this turn: those that the model had before, and what the message needs. */
async function discover(
  toolscout: Toolscout,
  messages: ChatMessage[],
  signal: AbortSignal,
): Promise<Discovery<"openai"> | null> {
  const keep = messages.findLast((message) => message.metadata?.toolKeys)?.metadata?.toolKeys ?? [];
  try {
    return await toolscout.discover({ messages: messages.map(toText), format: "openai", keep }, { signal });
  } catch (error) {
    if (!(error instanceof ToolscoutError)) {
      throw error;
    }
    console.error("this turn has no tools:", String(error)); // a chat without tools is better than none
    return null;
  }
}

function toText({ role, parts }: ChatMessage): { role: string; content: string } {
  return { role, content: parts.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n") };
}
