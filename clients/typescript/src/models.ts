/** The types of requests and answers: those of the OpenAPI document, with names, and what makes them pleasant. */

import { NotFound } from "./errors.js";
import type { components } from "./openapi.js";
import type { Answer, Body, Camelized, Item, Query } from "./routes.js";

type Schemas = components["schemas"];
type JsonObject = Record<string, unknown>;

export type AddedServer = Schemas["FromRegistryOut"];
export type AuditEvent = Item<"GET /audit">;
export type AuthorizationLink = Schemas["AuthorizationLinkOut"];
export type CatalogSearch = Schemas["SearchOut"];
export type CatalogTool = Schemas["SentToolBody"];
export type CoreTools = Schemas["CoreToolsOut"];
export type CreatedKey = Schemas["CreatedKeyOut"];
export type Decision = Schemas["DecisionOut"];
export type Evaluation = Schemas["EvalOut"];
export type Health = Schemas["Health"];
export type Key = Schemas["KeyOut"];
export type LabelledMessage = Schemas["ItemBody"];
export type Preview = Schemas["PreviewOut"];
export type Project = Schemas["ProjectOut"];
export type Readiness = Schemas["Readiness"];
export type Reason = Schemas["ReasonOut"];
export type RegistryServer = Schemas["RegistryServerOut"];
export type Rule = Schemas["RuleBody"];
export type Rules = Schemas["RulesOut"];
export type Run = Schemas["RunOut"];
export type Selection = Schemas["SelectionOut"];
export type Server = Schemas["ServerOut"];
export type ServerImport = Schemas["ImportOut"];
export type SharedServer = Schemas["SharedServerOut"];
export type Stats = Schemas["StatsOut"];
export type Category = Schemas["CategoryOut"];
export type Tag = Schemas["TagOut"];
export type Tool = Schemas["ToolOut"];
export type ToolChange = Schemas["ChangeOut"];
export type ToolDetails = Schemas["ToolDetailsOut"];
export type ToolExamples = Schemas["ExamplesOut"];
export type User = Schemas["UserOut"];

/** A time: a `Date`, or a text in ISO 8601. */
export type Time = Date | string;
type WithTimes<T, Names extends keyof T> = Omit<T, Names> & { [N in Names]?: Time | null };

export type Format = NonNullable<Body<"POST /discover">["format"]>;
export type FeedbackOutcome = Body<"POST /feedback">["outcome"];
export type ToolCall = NonNullable<Body<"POST /execute">["tool_call"]>;
export type Transport = Body<"POST /servers">["transport"];
export type KeyKind = Body<"POST /keys">["kind"];

export type ServerFields = Omit<Camelized<Body<"POST /servers">>, "name" | "transport">;
export type ServerChanges = Camelized<Body<"PATCH /servers/{server_id}">>;
export type RegistryFields = Omit<Camelized<Body<"POST /servers/from-registry">>, "registryName">;
export type SharingFields = Omit<Camelized<Body<"POST /shared-servers">>, "name" | "transport">;
export type SharedServerChanges = Camelized<Body<"PATCH /shared-servers/{server_id}">>;
export type ToolFilter = Omit<Camelized<Query<"GET /tools">>, "cursor">;
export type ToolChanges = Camelized<Body<"PATCH /tools/{tool_id}">>;
export type ProjectFields = Omit<Camelized<Body<"POST /projects">>, "name">;
export type ProjectChanges = Camelized<Body<"PATCH /projects/{project_id}">>;
export type UserChanges = Camelized<Body<"PATCH /users/{user_id}">>;
export type KeyFields = WithTimes<Omit<Camelized<Body<"POST /keys">>, "kind">, "expiresAt">;
export type AuditFilter = WithTimes<Omit<Camelized<Query<"GET /audit">>, "cursor">, "since" | "until">;
export type DecisionFilter = WithTimes<Omit<Camelized<Query<"GET /decisions">>, "cursor">, "since" | "until">;
export type ExampleSource = NonNullable<Query<"DELETE /examples">["source"]>;
export type StatsStep = NonNullable<Query<"GET /stats">["step"]>;

/** Options of `discover` and `why`. */
export type DiscoverOptions<F extends Format = Format> = Omit<
  Camelized<Body<"POST /discover">>,
  "messages" | "keep" | "format"
> & {
  /** Recent messages, in OpenAI's or Anthropic's format, instead of a query. */
  messages?: readonly object[] | null;
  /**
   * The tools that the model was given before: the last discovery, its tools, their keys, or the conversation, which
   * Toolscout remembers. They come first, and the answer says what has changed.
   */
  keep?: Keep | null;
  /** The format of `definitions`. */
  format?: F;
};

/** A conversation by your own id for it, unique for the user. */
export interface Conversation {
  conversationId: string;
}

export type Keep = Discovery | readonly (string | KeptTool)[] | Conversation;
export type KeptTool = Pick<DiscoveredTool, "tool_key" | "alias" | "definition_hash">;

/** Return `keep` as the API takes it: of tools only what identifies them as the model has them. */
export function renderKeep(keep: Keep): unknown {
  if ("conversationId" in keep) {
    return { conversation_id: keep.conversationId };
  }
  const tools = keep instanceof Discovery ? keep.tools : keep;
  return tools.map((tool) => {
    if (typeof tool === "string") {
      return tool;
    }
    const { tool_key, alias, definition_hash } = tool;
    return { tool_key, alias, definition_hash };
  });
}

export interface McpDefinition {
  name: string;
  description?: string;
  inputSchema: JsonObject;
  [field: string]: unknown;
}

export interface OpenAIDefinition {
  type: "function";
  function: { name: string; description?: string; parameters: JsonObject };
}

export interface OpenAIResponsesDefinition {
  type: "function";
  name: string;
  description?: string;
  parameters: JsonObject;
  strict: false;
}

export interface AnthropicDefinition {
  name: string;
  description?: string;
  input_schema: JsonObject & { type: "object" };
}

interface Definitions {
  mcp: McpDefinition;
  openai: OpenAIDefinition;
  openai_responses: OpenAIResponsesDefinition;
  anthropic: AnthropicDefinition;
}

/** A tool as the model's API wants it in a format. */
export type Definition<F extends Format = Format> = Definitions[F];

type DiscoverAnswer = Answer<"POST /discover">;
export type DiscoveredTool = DiscoverAnswer["tools"][number];

/** A message of Anthropic's API that takes tools away and adds others. */
export interface AnthropicChanges {
  role: "system";
  content: (
    | { type: "tool_removal"; tool: { type: "tool_reference"; name: string } }
    | { type: "tool_addition"; tool: { type: "tool_definition"; definition: AnthropicDefinition } }
  )[];
}

/** An item of the `input` of OpenAI's Responses API that adds tools. */
export interface OpenAIResponsesChanges {
  type: "additional_tools";
  role: "developer";
  tools: OpenAIResponsesDefinition[];
}

interface ChangesByFormat {
  mcp: never;
  openai: never;
  openai_responses: OpenAIResponsesChanges;
  anthropic: AnthropicChanges;
}

/** What to append to the conversation instead of sending another `tools`. */
export interface ToolsetChanges<F extends Format = Format> {
  /** For Anthropic a message, for OpenAI's Responses API an item of `input`. */
  message: ChangesByFormat[F];
  /** For Anthropic, the `betas` of the request. */
  betas: string[];
}

export interface Discovery<F extends Format = Format> extends Omit<DiscoverAnswer, "definitions" | "changes"> {
  /** The definitions for the model, in the requested `format`. */
  definitions: Definition<F>[];
  /** With `keep`: null if nothing has changed, and in the formats `mcp` and `openai`, which know no such thing. */
  changes: ToolsetChanges<F> | null;
}

/** The answer of `discover`, with the fields of the API. */
export class Discovery<F extends Format = Format> {
  constructor({ changes, ...answer }: DiscoverAnswer) {
    Object.assign(this, answer, { changes: splitChanges(changes) });
  }

  /** The keys to pass as `keep` in the next discovery of the conversation. */
  get toolKeys(): string[] {
    return this.tools.map((tool) => tool.tool_key);
  }

  /** Return the key of the tool that the model calls by this name. Throw `NotFound` if the model made it up. */
  keyOf(alias: string): string {
    const found = this.tools.find((tool) => tool.alias === alias);
    if (found === undefined) {
      throw new NotFound(`the discovery has no tool named ${JSON.stringify(alias)}`, { code: "TOOL_NOT_FOUND" });
    }
    return found.tool_key;
  }
}

/** `betas` belongs into a header, not into the message. */
function splitChanges(changes: DiscoverAnswer["changes"] | undefined): ToolsetChanges | null {
  if (changes == null) {
    return null;
  }
  const { betas = [], ...message } = changes as JsonObject & { betas?: string[] };
  return { message: message as unknown as ToolsetChanges["message"], betas };
}

type ExecuteAnswer = Answer<"POST /execute">;

export type ExecuteOptions = Omit<Camelized<Body<"POST /execute">>, "timeoutMs" | "toolKey" | "arguments" | "toolCall"> & {
  /** How long the tool may run, in milliseconds: a minute. The client waits 30 seconds longer for the answer. */
  timeoutMs?: number | undefined;
  /** Made for each call unless you give one: a call with the same key is run once. */
  idempotencyKey?: string | undefined;
  /** Is called whenever the tool reports progress. What it throws is thrown, and cancels the call. */
  onProgress?: ((progress: ToolProgress) => void) | undefined;
};

/** What a tool says about its progress. */
export interface ToolProgress {
  progress: number;
  total: number | null;
  message: string | null;
}

/** A call by the tool's key, or the model's own tool call in OpenAI's or Anthropic's format. */
export type ExecuteCall =
  | { toolKey: string; arguments?: object | null; toolCall?: never }
  | { toolCall: ToolCall; toolKey?: never; arguments?: never };

export interface ContentBlock {
  type: string;
  text?: string;
  [field: string]: unknown;
}

/** The MCP server's own result. */
export interface ToolResult {
  content?: ContentBlock[];
  structuredContent?: unknown;
  isError?: boolean;
  [field: string]: unknown;
}

export interface Execution extends Omit<ExecuteAnswer, "result"> {
  result: ToolResult;
}

/** The answer of `execute`, with the fields of the API. */
export class Execution {
  constructor(answer: ExecuteAnswer) {
    Object.assign(this, answer);
  }

  /** The tool ran and reported a failure, which the model can read. */
  get isError(): boolean {
    return this.result.isError === true;
  }

  /** The text of all text blocks. Images and structured content are in `result`. */
  get text(): string {
    const blocks = this.result.content ?? [];
    return blocks.flatMap((block) => (block.type === "text" ? [block.text ?? ""] : [])).join("\n");
  }
}

/** Whether an index run has ended; `state` says how. */
export function hasEnded(run: Run): boolean {
  return run.state === "succeeded" || run.state === "failed";
}
