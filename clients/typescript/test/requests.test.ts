/** What the client sends, how requests are aborted, and which class an error has. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { inspect } from "node:util";
import {
  ArgumentsInvalid,
  AuthorizationRequired,
  collect,
  ConfirmationRequired,
  Conflict,
  ConnectionFailed,
  type Discovery,
  Forbidden,
  InvalidInput,
  type Keep,
  NotFound,
  RateLimited,
  ToolFailed,
  Toolscout,
  ToolscoutError,
  TryLater,
  Unauthenticated,
  Unavailable,
} from "../src/index.js";
import { VERSION } from "../src/version.js";
import { DROPPED, httpResponse, jsonResponse, problemResponse, runAgainst, SILENT, WireServer } from "./wire.js";

const DISCOVERY = { discovery_id: "d", tools: [], definitions: [] };

test("the key, the user and the options are sent, in the names of the API", async () => {
  const { received } = await runAgainst([jsonResponse(DISCOVERY)], (client) =>
    client.forUser("alice").discover("hello", { projectId: "p", maxTokens: 100, format: "openai", tags: ["a_b"] }),
  );
  const [{ head, body } = { head: "", body: "" }] = received;
  assert.match(head, /^POST \/discover HTTP/);
  assert.match(head, /authorization: Bearer a-key/i);
  assert.match(head, /x-user-id: alice/i);
  assert.match(head, new RegExp(`user-agent: toolscout-client-typescript/${VERSION.replaceAll(".", "\\.")}`, "i"));
  const expected = { query: "hello", project_id: "p", max_tokens: 100, format: "openai", tags: ["a_b"] };
  assert.deepEqual(JSON.parse(body), expected);
});

test("a discovery takes its message in the first argument or in the options", async () => {
  const sent = async (operation: (client: Toolscout) => Promise<unknown>): Promise<unknown> => {
    const { received } = await runAgainst([jsonResponse(DISCOVERY)], operation);
    return JSON.parse(received[0]?.body ?? "");
  };
  assert.deepEqual(await sent((c) => c.discover("hello", { limit: 3 })), { query: "hello", limit: 3 });
  assert.deepEqual(await sent((c) => c.discover({ query: "hello", limit: 3 })), { query: "hello", limit: 3 });
  const { signal } = new AbortController();
  assert.deepEqual(await sent((c) => c.discover({ messages: [{ role: "user" }] }, { signal })), {
    messages: [{ role: "user" }],
  });
});

test("tools to keep are a discovery, tools, keys or a conversation", async () => {
  const tool = { tool_key: "k", alias: "a", definition_hash: "h", tokens: 100, tool: { name: "a" } };
  const kept = async (keep: (found: Discovery) => Keep): Promise<unknown> => {
    const { received } = await runAgainst(
      [jsonResponse({ ...DISCOVERY, tools: [tool] }), jsonResponse(DISCOVERY)],
      async (client) => client.discover("and then?", { keep: keep(await client.discover("hello")) }),
    );
    return (JSON.parse(received[1]?.body ?? "") as { keep: unknown }).keep;
  };
  const identity = { tool_key: "k", alias: "a", definition_hash: "h" };
  assert.deepEqual(await kept((found) => found), [identity]);
  assert.deepEqual(await kept((found) => found.tools), [identity]);
  assert.deepEqual(await kept((found) => [...found.toolKeys, identity]), ["k", identity]);
  assert.deepEqual(await kept(() => ({ conversationId: "c" })), { conversation_id: "c" });
});

test("feedback and calls name their conversation if they have one", async () => {
  const sentTo = async (operation: (client: Toolscout) => Promise<unknown>): Promise<unknown> => {
    const { received } = await runAgainst([problemResponse("404 Not Found", "not_found")], operation);
    return JSON.parse(received[0]?.body ?? "");
  };
  const report = { discovery_id: "d", tool_key: "k", outcome: "called" };
  const conversationId = "c";
  assert.deepEqual(await sentTo((c) => c.feedback("d", "k", "called", { conversationId })), { ...report, conversation_id: "c" });
  assert.deepEqual(await sentTo((c) => c.feedback("d", "k", "called")), report);
  assert.deepEqual(await sentTo((c) => c.execute("k", {}, { conversationId })), {
    tool_key: "k",
    arguments: {},
    conversation_id: "c",
  });
});

test("the betas of changes are apart from the message", async () => {
  const changes = { role: "system", content: [], betas: ["a-beta"] };
  const { outcome } = await runAgainst([jsonResponse({ ...DISCOVERY, changes })], (client) =>
    client.discover("hello", { format: "anthropic", keep: [] }),
  );
  assert.ok(!(outcome instanceof ToolscoutError));
  assert.deepEqual(outcome.changes, { message: { role: "system", content: [] }, betas: ["a-beta"] });
});

test("an execution sends what it was given, and waits longer than the tool may run", async () => {
  const executed = { result: { content: [{ type: "text", text: "a" }, { type: "image" }, { type: "text", text: "b" }] } };
  const { outcome, received } = await runAgainst([jsonResponse(executed)], (client) =>
    client.execute({
      toolCall: { type: "tool_use", name: "get_forecast", input: { place: "Oslo" } },
      timeoutMs: 500,
      discoveryId: "d",
      confirmationToken: "t",
      idempotencyKey: "mine",
    }),
  );
  assert.ok(!(outcome instanceof ToolscoutError));
  assert.equal(outcome.text, "a\nb");
  assert.equal(outcome.isError, false);
  assert.match(received[0]?.head ?? "", /idempotency-key: mine/i);
  assert.deepEqual(JSON.parse(received[0]?.body ?? ""), {
    tool_call: { type: "tool_use", name: "get_forecast", input: { place: "Oslo" } },
    discovery_id: "d",
    confirmation_token: "t",
    timeout_ms: 500,
  });
});

test("an id cannot change the route", async () => {
  const { received } = await runAgainst([problemResponse("404 Not Found", "not_found")], (c) => c.users.get("../keys"));
  assert.match(received[0]?.head ?? "", /^GET \/users\/\.\.%2Fkeys HTTP/);
  const client = new Toolscout({ url: "http://127.0.0.1:9", key: "a-key" });
  for (const id of ["", ".", ".."]) {
    await assert.rejects(client.users.get(id), TypeError);
  }
});

test("the path of the address is kept", async () => {
  const asked: string[] = [];
  const recording: typeof fetch = (url) => {
    asked.push(String(url));
    return Promise.resolve(Response.json({ status: "ok" }));
  };
  for (const url of ["http://example.com", "http://example.com/", "https://example.com/tools/"]) {
    await new Toolscout({ url, key: "a-key", fetch: recording }).health();
  }
  const expected = ["http://example.com/healthz", "http://example.com/healthz", "https://example.com/tools/healthz"];
  assert.deepEqual(asked, expected);
});

test("a list reads all pages", async () => {
  const pages = [
    jsonResponse({ items: [{ name: "a" }, { name: "b" }], next_cursor: "next one" }),
    jsonResponse({ items: [{ name: "c" }], next_cursor: null }),
  ];
  const { outcome, received } = await runAgainst(pages, (c) => collect(c.tools.list({ serverId: "s", visible: true })));
  assert.ok(!(outcome instanceof ToolscoutError));
  assert.deepEqual(outcome.map((tool) => tool.name), ["a", "b", "c"]);
  assert.match(received[0]?.head ?? "", /^GET \/tools\?limit=200&server_id=s&visible=true HTTP/);
  assert.match(received[1]?.head ?? "", /^GET \/tools\?limit=200&server_id=s&visible=true&cursor=next\+one HTTP/);
});

test("a list that is left early fetches no further page", async () => {
  const page = jsonResponse({ items: [{ id: "a" }], next_cursor: "next" });
  const { received } = await runAgainst([page, page], async (client) => {
    for await (const user of client.users.list()) {
      return user.id;
    }
    return "none";
  });
  assert.equal(received.length, 1);
});

test("an aborted request throws the reason of its signal and is not sent again", async () => {
  const controller = new AbortController();
  const operation = runAgainst([SILENT, jsonResponse({ status: "ok" })], async (client, server) => {
    void server.nextRequest().then(() => controller.abort());
    try {
      return await client.health({ signal: controller.signal });
    } finally {
      assert.equal(server.received.length, 1);
    }
  });
  await assert.rejects(operation, { name: "AbortError" });
});

test("an abort during a pause ends the retries", async () => {
  const controller = new AbortController();
  const busy = problemResponse("503 Service Unavailable", "unavailable", {}, "30");
  const operation = runAgainst([busy, jsonResponse({ status: "ok" })], async (client, server) => {
    void server.nextRequest().then(() => setTimeout(() => controller.abort(new Error("the user left")), 50));
    try {
      return await client.health({ signal: controller.signal });
    } finally {
      assert.equal(server.received.length, 1);
    }
  });
  await assert.rejects(operation, { message: "the user left" });
});

test("a signal that is already aborted sends nothing", async () => {
  const operation = runAgainst([], async (client, server) => {
    try {
      return await client.health({ signal: AbortSignal.abort() });
    } finally {
      assert.equal(server.received.length, 0);
    }
  });
  await assert.rejects(operation, { name: "AbortError" });
});

test("a signal that is not aborted changes nothing, and keeps no listener", async () => {
  const { signal } = new AbortController();
  let listeners = 0;
  const count = (change: number, original: (...args: never[]) => void) => (...args: never[]) => {
    listeners += change;
    original.apply(signal, args);
  };
  signal.addEventListener = count(1, signal.addEventListener as never) as never;
  signal.removeEventListener = count(-1, signal.removeEventListener as never) as never;
  const { outcome } = await runAgainst([DROPPED, jsonResponse({ status: "ok" })], (c) => c.health({ signal }));
  assert.ok(!(outcome instanceof ToolscoutError));
  assert.equal(listeners, 0);
});

test("a path that leads to another address is not requested", async () => {
  const requested: string[] = [];
  const fetch: typeof globalThis.fetch = (url) => {
    requested.push(String(url));
    return Promise.resolve(new Response("{}"));
  };
  for (const address of ["https://toolscout.example.com", "https://toolscout.example.com/base/"]) {
    const client = new Toolscout({ url: address, key: "a-key", fetch, retries: 0 });
    for (const path of ["https://evil.example.com/x", "//evil.example.com/x", "\\\\evil.example.com", "/\\evil.example.com"]) {
      await client.request("GET", path).catch((error: unknown) => assert.ok(error instanceof TypeError));
    }
    await client.request("GET", "/healthz");
  }
  assert.deepEqual(requested.map((url) => new URL(url).origin).filter((origin) => !origin.endsWith("//toolscout.example.com")), []);
  assert.ok(requested.includes("https://toolscout.example.com/base/healthz"));
  assert.ok(requested.includes("https://toolscout.example.com/healthz"));
});

test("a redirect is not followed, so that the key goes nowhere else", async () => {
  const elsewhere = new WireServer([jsonResponse({ status: "ok" })]);
  const redirect = httpResponse("307 Temporary Redirect", "", { Location: `${await elsewhere.start()}/healthz` });
  const { outcome, received } = await runAgainst([redirect], (client) => client.health());
  await elsewhere.stop();
  assert.ok(outcome instanceof ToolscoutError);
  assert.deepEqual([outcome.code, outcome.status], ["status_307", 307]);
  assert.deepEqual([received.length, elsewhere.received.length], [1, 0]);
});

const CLASSES: [string, string, typeof ToolscoutError, (typeof ToolscoutError)[]][] = [
  ["400 Bad Request", "invalid_input", InvalidInput, []],
  ["413 Content Too Large", "too_large", InvalidInput, []],
  ["422 Unprocessable", "invalid_input", InvalidInput, []],
  ["422 Unprocessable", "TOOL_VALIDATION_ERROR", ArgumentsInvalid, [InvalidInput]],
  ["401 Unauthorized", "unauthenticated", Unauthenticated, []],
  ["403 Forbidden", "forbidden", Forbidden, []],
  ["403 Forbidden", "AUTHORIZATION_REQUIRED", AuthorizationRequired, []],
  ["404 Not Found", "TOOL_NOT_FOUND", NotFound, []],
  ["409 Conflict", "conflict", Conflict, []],
  ["409 Conflict", "CONFIRMATION_REQUIRED", ConfirmationRequired, [Conflict]],
  ["429 Too Many Requests", "rate_limited", RateLimited, [TryLater]],
  ["503 Service Unavailable", "unavailable", Unavailable, [TryLater]],
  ["502 Bad Gateway", "SERVER_CONNECTION_ERROR", ToolFailed, []],
  ["504 Gateway Timeout", "TOOL_EXECUTION_TIMEOUT", ToolFailed, []],
  ["504 Gateway Timeout", "something_else", ConnectionFailed, []],
  ["500 Internal Server Error", "internal_error", ToolscoutError, []],
];

for (const [status, code, type, parents] of CLASSES) {
  test(`${status} with the code ${code} is a ${type.name}`, async () => {
    const { outcome } = await runAgainst([problemResponse(status, code)], (client) => client.health());
    assert.ok(outcome instanceof ToolscoutError);
    assert.equal(outcome.constructor, type);
    assert.equal(outcome.name, type.name);
    assert.equal(String(outcome), `${code}: a sentence`);
    assert.ok(parents.every((parent) => outcome instanceof parent));
  });
}

test("an error has what the problem says", async () => {
  const members = {
    errors: [{ field: "place" }],
    cause: "refused",
    server: "weather",
    tool: "get_forecast",
    choices: [{ tool_key: "k", name: "n" }],
    confirmation_token: "t",
    authorization_url: "https://example.com",
    expires_at: "2026-11-18T00:00:00Z",
  };
  const { outcome } = await runAgainst([problemResponse("409 Conflict", "CONFIRMATION_REQUIRED", members)], (c) =>
    c.execute("k"),
  );
  assert.ok(outcome instanceof ConfirmationRequired);
  assert.deepEqual([outcome.errors, outcome.choices], [members.errors, members.choices]);
  assert.deepEqual([outcome.failureCause, outcome.server, outcome.tool], ["refused", "weather", "get_forecast"]);
  assert.deepEqual([outcome.token, outcome.expiresAt], ["t", members.expires_at]);
  assert.equal(outcome.authorizationUrl, "https://example.com");
});

test("an address that cannot be used is refused at once", () => {
  for (const url of ["toolscout", "ftp://example.com", "http://alice:secret@example.com"]) {
    assert.throws(() => new Toolscout({ url, key: "a-key" }), TypeError);
  }
});

const UNUSABLE = { newline: "a-canary\nb", space: "a-canary b", umlaut: "a-cänary", nothing: "" };
for (const [name, value] of Object.entries(UNUSABLE)) {
  test(`a key or a user's id that no header can carry is refused without showing it: ${name}`, () => {
    const url = "http://example.com";
    for (const make of [
      () => new Toolscout({ url, key: value }),
      () => new Toolscout({ url, key: "a-key", userId: value }),
      () => new Toolscout({ url, key: "a-key" }).forUser(value),
    ]) {
      assert.throws(make, (error) => error instanceof TypeError && !/n[aä]ry/.test(error.message));
    }
  });
}

test("arguments that are not JSON are a mistake of the caller, and not a lost answer", async () => {
  const circular: { self?: unknown } = {};
  circular.self = circular;
  for (const args of [{ number: 7n }, circular]) {
    const operation = async (c: Toolscout): Promise<unknown> =>
      c.execute("k", args).catch((error: unknown) => ({ error }));
    const { outcome, received } = await runAgainst([], operation);
    assert.ok((outcome as { error: unknown }).error instanceof TypeError);
    assert.equal(received.length, 0);
  }
});

test("an idempotency key is made on pages without a secure context, too", async () => {
  const original = crypto.randomUUID;
  Object.defineProperty(crypto, "randomUUID", { value: undefined, configurable: true, writable: true });
  try {
    const { received } = await runAgainst([problemResponse("404 Not Found", "not_found")], (c) => c.execute("k"));
    assert.match(received[0]?.head ?? "", /idempotency-key: [0-9a-f]{32}\r/i);
  } finally {
    Object.defineProperty(crypto, "randomUUID", { value: original, configurable: true, writable: true });
  }
});

test("the key does not show in a logged client", () => {
  const client = new Toolscout({ url: "http://example.com", key: "a-canary" });
  assert.ok(!inspect([client, client.servers, client.forUser("a").tools], { depth: 9, showHidden: true }).includes("canary"));
});

test("the version is that of the package", () => {
  const { version } = JSON.parse(readFileSync("package.json", "utf8")) as { version: string };
  assert.equal(VERSION, version);
});
