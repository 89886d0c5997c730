/** Tools for the Vercel AI SDK, against scripted answers. The example's tests run them with the SDK itself. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { type AiSdkExecutor, type AiSdkTool, requireApproval, toAiSdkTools, toModelOutput } from "../src/ai.js";
import { ConfirmationRequired, type Discovery, NotFound, type Toolscout } from "../src/index.js";
import { jsonResponse, problemResponse, type Received, runAgainst, type Script } from "./wire.js";

const PARAMETERS = { type: "object", properties: { note_id: { type: "integer" } } };
const DISCOVERY = {
  discovery_id: "d",
  tools: [
    { tool_key: "k1", alias: "delete_note", server_id: "s", tool: { annotations: { destructiveHint: true } } },
    { tool_key: "k2", alias: "list_notes", server_id: "s", tool: { annotations: null } },
  ],
  definitions: [
    { type: "function", function: { name: "delete_note", description: "Deletes.", parameters: PARAMETERS } },
    { type: "function", function: { name: "list_notes", parameters: { type: "object" } } },
  ],
};
const CONFIRM = problemResponse("409 Conflict", "CONFIRMATION_REQUIRED", { confirmation_token: "t" });
const RESULT = { content: [{ type: "text", text: "deleted" }], structuredContent: { id: 7 } };
const EXECUTED = jsonResponse({ result: RESULT, tool_key: "k1", server_id: "s", duration_ms: 1, truncated: false });

type Run = (tools: Record<string, AiSdkTool>, found: Discovery<"openai">) => Promise<unknown>;

const headerOf = (request: Received | undefined, name: string): string | undefined =>
  new RegExp(`^${name}: (.*)\r$`, "im").exec(request?.head ?? "")?.[1];

/** Discover, make the tools and use them. Return the result, or what was thrown, and the requests after the first. */
async function useTools(script: Script, run: Run): Promise<{ outcome: unknown; received: Received[] }> {
  const operation = async (client: Toolscout): Promise<unknown> => {
    const found = await client.discover("delete note 7", { format: "openai" });
    const tools = toAiSdkTools(found, client, { jsonSchema: (schema) => schema, projectId: "p", conversationId: "c" });
    return run(tools, found).catch((error: unknown) => error);
  };
  const { outcome, received } = await runAgainst([jsonResponse(DISCOVERY), ...script], operation);
  return { outcome, received: received.slice(1) };
}

function approval(toolCallId: string, approved: boolean): object[] {
  return [
    { role: "user", content: "delete note 7" },
    { role: "assistant", content: [{ type: "tool-approval-request", approvalId: "a", toolCallId }] },
    { role: "tool", content: [{ type: "tool-approval-response", approvalId: "a", approved }] },
  ];
}

const call = (messages: object[]): Run => (tools) =>
  tools["delete_note"]?.execute({ note_id: 7 }, { toolCallId: "c", messages }) ?? Promise.reject(new Error("no tool"));

test("tools have the model's names, the descriptions and the schemas", async () => {
  const { outcome } = await useTools([], async (tools, found) => {
    assert.deepEqual(Object.keys(tools), ["delete_note", "list_notes"]);
    assert.deepEqual(requireApproval(found), { delete_note: "user-approval" });
    return [tools["delete_note"]?.description, tools["delete_note"]?.inputSchema, tools["list_notes"]?.description];
  });
  assert.deepEqual(outcome, ["Deletes.", PARAMETERS, ""]);
});

test("a call runs by the tool's key, with the discovery and the given options", async () => {
  const { outcome, received } = await useTools([EXECUTED], call([]));
  assert.deepEqual(outcome, RESULT);
  const expected = { tool_key: "k1", arguments: { note_id: 7 }, discovery_id: "d", project_id: "p", conversation_id: "c" };
  assert.deepEqual(JSON.parse(received[0]?.body ?? ""), expected);
});

test("a call that the user has approved is confirmed", async () => {
  const { outcome, received } = await useTools([CONFIRM, EXECUTED], call(approval("c", true)));
  assert.deepEqual(outcome, RESULT);
  assert.equal((JSON.parse(received[1]?.body ?? "") as { confirmation_token: string }).confirmation_token, "t");
});

test("one approval runs its call once: its id is the idempotency key of every request", async () => {
  const { received } = await useTools([CONFIRM, EXECUTED], call(approval("c", true)));
  assert.deepEqual(received.map((request) => headerOf(request, "idempotency-key")), ["a", "a"]);
  const denied = await useTools([EXECUTED], call(approval("another", true)));
  assert.match(headerOf(denied.received[0], "idempotency-key") ?? "", /^[0-9a-f]{32}$/);
});

test("the user is asked whenever Toolscout wants a confirmation: unless the hint is null or false", async () => {
  const hints = [true, 1, 0, "no", {}, false, null, undefined];
  const tools = hints.map((destructiveHint, index) => {
    return { alias: `tool_${index}`, tool: { annotations: { destructiveHint } } };
  });
  const { outcome } = await runAgainst([jsonResponse({ ...DISCOVERY, tools })], async (client) =>
    Object.keys(requireApproval(await client.discover("hello", { format: "openai" }))),
  );
  assert.deepEqual(outcome, ["tool_0", "tool_1", "tool_2", "tool_3", "tool_4"]);
});

test("tools that Toolscout does not run are left out, unless there is a function for them", async () => {
  const names = ["in_toolscout", "core_tool", "pushed_tool"];
  const servers = [{ server_id: "s" }, { server_id: null }, { server_id: "p", server_status: "push" }];
  const discovery = {
    ...DISCOVERY,
    tools: names.map((name, index) => ({ tool_key: name, alias: name, tool: {}, ...servers[index] })),
    definitions: names.map((name) => ({ type: "function", function: { name, parameters: PARAMETERS } })),
  };
  const makeTools = async (executors: Record<string, AiSdkExecutor>): Promise<Record<string, AiSdkTool>> => {
    const { outcome } = await runAgainst([jsonResponse(discovery)], async (client) => {
      const found = await client.discover("hello", { format: "openai" });
      return toAiSdkTools(found, client, { jsonSchema: (schema) => schema, executors });
    });
    assert.ok(!(outcome instanceof Error));
    return outcome;
  };
  assert.deepEqual(Object.keys(await makeTools({})), ["in_toolscout"]);
  const tools = await makeTools({ pushed_tool: async (input) => ({ ran: input }), unknown_tool: async () => null });
  assert.deepEqual(Object.keys(tools), ["in_toolscout", "pushed_tool"]);
  const output = await tools["pushed_tool"]?.execute({ a: 1 }, { toolCallId: "c", messages: [] });
  assert.deepEqual(output, { ran: { a: 1 } });
  assert.deepEqual(toModelOutput({ output }), { type: "text", value: '{"ran":{"a":1}}' });
});

for (const [name, messages] of Object.entries({
  "was asked for nothing": [],
  "has denied it": approval("c", false),
  "has approved another call": approval("another", true),
})) {
  test(`a call is not confirmed if the user ${name}`, async () => {
    const { outcome, received } = await useTools([CONFIRM, EXECUTED], call(messages));
    assert.ok(outcome instanceof ConfirmationRequired);
    assert.equal(received.length, 1);
  });
}

test("a server that wants a sign-in is an output with the link, which the model does not see", async () => {
  const members = { authorization_url: "https://example.com/sign-in", server: "notes" };
  const script = [problemResponse("403 Forbidden", "AUTHORIZATION_REQUIRED", members)];
  const { outcome } = await useTools(script, async (tools, found) => {
    const output = await call([])(tools, found);
    return { output, read: tools["delete_note"]?.toModelOutput({ output }) };
  });
  const { output, read } = outcome as { output: unknown; read: { type: string; value: string } };
  assert.deepEqual(output, { signInRequired: { server: "notes", url: members.authorization_url } });
  assert.equal(read.type, "error-text");
  assert.match(read.value, /sign in to notes/);
  assert.ok(!read.value.includes("https"));
});

test("an error is thrown, and its text has the code", async () => {
  const { outcome } = await useTools([problemResponse("404 Not Found", "TOOL_NOT_FOUND")], call([]));
  assert.ok(outcome instanceof NotFound);
  assert.equal(String(outcome), "TOOL_NOT_FOUND: a sentence");
});

test("the model reads texts, else the structured content, and failures as such", async () => {
  const { outcome } = await useTools([], async (tools) => {
    const read = (output: unknown): unknown => tools["list_notes"]?.toModelOutput({ output });
    return [
      read(RESULT),
      read({ content: [], structuredContent: { id: 7 } }),
      read({ content: [{ type: "text", text: "no such note" }], isError: true }),
    ];
  });
  assert.deepEqual(outcome, [
    { type: "text", value: "deleted" },
    { type: "text", value: '{"id":7}' },
    { type: "error-text", value: "no such note" },
  ]);
});

const IMAGE = { type: "image", mimeType: "image/png", data: "A".repeat(4_000) };

for (const [name, output, value] of [
  ["an image beside a text", { content: [{ type: "text", text: "a chart" }, IMAGE] }, "a chart\n[image/png, 3 kB]"],
  [
    "an image beside structured content",
    { content: [IMAGE], structuredContent: { id: 7 } },
    '{"id":7}\n[image/png, 3 kB]',
  ],
  [
    "an embedded text beside a text",
    { content: [{ type: "text", text: "see:" }, { type: "resource", resource: { uri: "file:///a", text: "inside" } }] },
    "see:\ninside",
  ],
  [
    "an embedded file",
    { content: [{ type: "resource", resource: { mimeType: "application/pdf", blob: "AAAA" } }] },
    "[application/pdf, 1 kB]",
  ],
  ["a link", { content: [{ type: "resource_link", uri: "https://example.com/a" }] }, "[https://example.com/a]"],
] as const) {
  test(`the model does not read base64, and no text is lost: ${name}`, () => {
    assert.deepEqual(toModelOutput({ output }), { type: "text", value });
  });
}

const SHAPES = [null, undefined, 7, "text", [], { content: 7 }, { content: [null, "a", {}] }, { signInRequired: null }];
for (const output of SHAPES) {
  test(`an output from a browser may have any shape: ${JSON.stringify(output)}`, () => {
    assert.equal(typeof toModelOutput({ output }).value, "string");
  });
}
