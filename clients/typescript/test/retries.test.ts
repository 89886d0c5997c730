/** Which requests the client sends again, against a server with scripted answers. The rules of the Python client. */

import assert from "node:assert/strict";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import {
  collect,
  Conflict,
  ConnectionFailed,
  NotFound,
  RateLimited,
  ToolFailed,
  Toolscout,
  ToolscoutError,
  Unavailable,
} from "../src/index.js";
import { MAX_PAUSE_MS, RetryPolicy } from "../src/retries.js";
import { sleep } from "../src/transport.js";
import { DROPPED, httpResponse, jsonResponse, problemResponse, runAgainst, SILENT } from "./wire.js";

const BUSY = problemResponse("503 Service Unavailable", "unavailable", {}, "0");
const LIMITED = problemResponse("429 Too Many Requests", "rate_limited", {}, "0");
const RUNNING = problemResponse("409 Conflict", "conflict");
const DISCOVERED = jsonResponse({ discovery_id: "d", tools: [], definitions: [] });
const NO_CONTENT = httpResponse("204 No Content");
const HEALTHY = jsonResponse({ status: "ok", a_future_field: { x: 1 } });
const EXECUTED = jsonResponse({ result: { content: [] }, tool_key: "k", server_id: "s", duration_ms: 1, truncated: false });

for (const [name, answer] of Object.entries({ 503: BUSY, 429: LIMITED })) {
  test(`a write is sent again after a ${name} with Retry-After`, async () => {
    const { outcome, received } = await runAgainst([answer, answer, NO_CONTENT], (c) => c.feedback("d", "k", "called"));
    assert.equal(outcome, undefined);
    const bodies = received.map(({ body }) => JSON.parse(body) as unknown);
    assert.deepEqual(bodies, Array(3).fill({ discovery_id: "d", tool_key: "k", outcome: "called" }));
  });
}

for (const [answer, type] of [
  [BUSY, Unavailable],
  [LIMITED, RateLimited],
] as const) {
  test(`the number of retries is limited: ${type.name}`, async () => {
    const { outcome, received } = await runAgainst([answer, answer, HEALTHY], (c) => c.health(), { retries: 1 });
    assert.ok(outcome instanceof type);
    assert.deepEqual([outcome.retryAfter, outcome.requestId, outcome.message], [0, "r1", "a sentence"]);
    assert.equal(received.length, 2);
  });
}

for (const [name, answer] of Object.entries({
  "a 503 without Retry-After": problemResponse("503 Service Unavailable", "unavailable"),
  "a 503 with a long Retry-After": problemResponse("503 Service Unavailable", "unavailable", {}, "3600"),
  "a 500": problemResponse("500 Internal Server Error", "internal_error"),
  "a 409": RUNNING,
})) {
  test(`${name} is not retried`, async () => {
    const { outcome, received } = await runAgainst([answer, HEALTHY], (c) => c.health());
    assert.ok(outcome instanceof ToolscoutError);
    assert.equal(received.length, 1);
  });
}

const READS: [string, (client: Toolscout) => Promise<unknown>, string][] = [
  ["health", (c) => c.health(), HEALTHY],
  ["request", (c) => c.request("GET", "/healthz"), HEALTHY],
  ["why, a POST that only reads", (c) => c.why("a_tool", "a message"), jsonResponse({ items: [] })],
  ["discover", (c) => c.discover("a message"), DISCOVERED],
  ["discover, with the tools of the answer before", (c) => c.discover("a message", { keep: [] }), DISCOVERED],
  [
    "discover, of a turn of a conversation",
    (c) => c.discover("a message", { keep: { conversationId: "chat-7" }, turn: 3 }),
    DISCOVERED,
  ],
];

for (const [name, operation, answer] of READS) {
  test(`a read whose answer was lost is sent again: ${name}`, async () => {
    const { outcome, received } = await runAgainst([DROPPED, answer], operation);
    assert.ok(!(outcome instanceof ToolscoutError));
    assert.equal(received.length, 2);
  });
}

test("an answer that breaks off in the middle counts as lost", async () => {
  const half = httpResponse("200 OK", '{"status":', { "Content-Type": "application/json", "Content-Length": "100" });
  const { outcome, received } = await runAgainst([half, HEALTHY], (c) => c.health());
  assert.ok(!(outcome instanceof ToolscoutError));
  assert.equal(outcome.status, "ok");
  assert.equal(received.length, 2);
});

for (const [name, operation] of Object.entries<(client: Toolscout) => Promise<unknown>>({
  feedback: (c) => c.feedback("d", "k", "called"),
  delete: (c) => c.servers.delete("s"),
  put: (c) => c.rules.put([]),
  request: (c) => c.request("POST", "/reindex"),
  "a discovery that is the next turn": (c) => c.discover("a message", { keep: { conversationId: "chat-7" } }),
})) {
  test(`a write whose answer was lost is not sent again: ${name}`, async () => {
    const { outcome, received } = await runAgainst([DROPPED, NO_CONTENT], operation);
    assert.ok(outcome instanceof ConnectionFailed);
    assert.equal(outcome.outcome, "unknown");
    assert.equal(received.length, 1);
  });
}

test("an execution whose answer was lost is sent again with the same key, and waits for the first one", async () => {
  const script = [DROPPED, RUNNING, RUNNING, EXECUTED];
  const { outcome, received } = await runAgainst(script, (c) => c.execute("k", {}), { retries: 1 });
  assert.ok(!(outcome instanceof ToolscoutError));
  assert.equal(outcome.tool_key, "k");
  const keys = received.map(({ head }) => /idempotency-key: (\S+)/i.exec(head)?.[1]);
  assert.equal(keys.length, 4);
  assert.match(keys[0] ?? "", /^[0-9a-f]{32}$/);
  assert.equal(new Set(keys).size, 1);
});

for (const [name, answer] of Object.entries({
  "a confirmation is wanted": problemResponse("409 Conflict", "CONFIRMATION_REQUIRED", { confirmation_token: "t" }),
  "the name means several tools": problemResponse("409 Conflict", "conflict", { choices: [{ tool_key: "k" }] }),
})) {
  test(`a conflict after a lost answer that does not say "still running" is thrown: ${name}`, async () => {
    const { outcome, received } = await runAgainst([DROPPED, answer, EXECUTED], (c) => c.execute("k"));
    assert.ok(outcome instanceof Conflict);
    assert.equal(received.length, 2);
  });
}

test("a conflict without a lost answer is thrown", async () => {
  const call = (c: Toolscout): Promise<unknown> => c.execute("k", {}, { idempotencyKey: "theirs" });
  const { outcome, received } = await runAgainst([RUNNING, EXECUTED], call);
  assert.equal((outcome as Error).constructor, Conflict);
  assert.equal(received.length, 1);
});

for (const reported of ["failed", "unknown"]) {
  test(`a tool that failed with the outcome ${reported} is not run again`, async () => {
    const failed = problemResponse("502 Bad Gateway", "TOOL_EXECUTION_ERROR", { outcome: reported });
    const { outcome, received } = await runAgainst([failed, EXECUTED], (c) => c.execute("k"));
    assert.ok(outcome instanceof ToolFailed);
    assert.equal(outcome.outcome, reported);
    assert.equal(received.length, 1);
  });
}

test("an error of a proxy has an unknown outcome", async () => {
  const proxy = httpResponse("502 Bad Gateway", "<html>Bad Gateway</html>", { "Content-Type": "text/html" });
  const { outcome, received } = await runAgainst([proxy, EXECUTED], (c) => c.execute("k"));
  assert.ok(outcome instanceof ConnectionFailed);
  assert.deepEqual([outcome.outcome, outcome.code, outcome.status], ["unknown", "status_502", 502]);
  assert.equal(received.length, 1);
});

for (const [name, answer] of Object.entries({ html: httpResponse("200 OK", "<html>"), "a list": jsonResponse([]) })) {
  test(`a response of another service is an error: ${name}`, async () => {
    const { outcome } = await runAgainst([answer], (c) => c.health());
    assert.ok(outcome instanceof ToolscoutError);
    assert.equal(outcome.code, "unreadable_answer");
    assert.match(outcome.message, /\/healthz/);
  });
}

test("a page without items is an error", async () => {
  for (const answer of [jsonResponse({ state: "ok" }), httpResponse("200 OK", "<html>")]) {
    const { outcome } = await runAgainst([answer], (c) => c.tools.tags());
    assert.equal((outcome as ToolscoutError).code, "unreadable_answer");
    assert.match((outcome as ToolscoutError).message, /^http:.*\/tags returned/);
  }
});

test("a refused connection is retried and then thrown, even for a write", async () => {
  const listening = createServer();
  await new Promise<void>((resolve) => listening.listen(0, "127.0.0.1", resolve));
  const { port } = listening.address() as AddressInfo;
  await new Promise((resolve) => listening.close(resolve));
  let attempts = 0;
  const counting: typeof fetch = (...request) => {
    attempts += 1;
    return fetch(...request);
  };
  const client = new Toolscout({ url: `http://127.0.0.1:${port}`, key: "a-key", retries: 1, fetch: counting });
  await assert.rejects(client.servers.delete("s"), (error) => {
    assert.ok(error instanceof ConnectionFailed);
    assert.deepEqual([error.outcome, error.code, error.status], ["failed", "connection_failed", null]);
    assert.match(String(error), new RegExp(`no answer from 127.0.0.1:${port}: `));
    return true;
  });
  assert.equal(attempts, 2);
});

test("a server that does not answer times out, and the request is not sent again", async () => {
  const { outcome, received } = await runAgainst([SILENT, HEALTHY], (c) => c.health(), { timeoutMs: 50 });
  assert.ok(outcome instanceof ConnectionFailed);
  assert.equal(outcome.outcome, "unknown");
  assert.match(outcome.message, /timed out/);
  assert.equal(received.length, 1);
});

for (const timeoutMs of [Infinity, 2 ** 31]) {
  test(`a long timeout is waited for: ${timeoutMs}`, async () => {
    const { outcome } = await runAgainst([HEALTHY], (c) => c.health(), { timeoutMs });
    assert.ok(!(outcome instanceof ToolscoutError));
    const { received } = await runAgainst([EXECUTED], (c) => c.execute("k", {}, { timeoutMs }));
    assert.equal((JSON.parse(received[0]?.body ?? "") as { timeout_ms: unknown }).timeout_ms, 3_600_000);
  });
}

const PROGRESS = { progress: 1, total: 2, message: "half" };

function streamResponse(...blocks: string[]): string {
  return httpResponse("200 OK", blocks.join(""), { "Content-Type": "text/event-stream; charset=utf-8" });
}

function event(name: string, data: unknown): string {
  return `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
}

test("an execution whose stream of events breaks off is sent again with the same key", async () => {
  const executed = { result: { content: [] }, tool_key: "k" };
  const script = [
    streamResponse(event("progress", PROGRESS), ": still here\n\n"),
    RUNNING,
    streamResponse(": still here\n\n", event("progress", { ...PROGRESS, progress: 2 }), event("result", executed)),
  ];
  const reports: number[] = [];
  const onProgress = ({ progress }: { progress: number }): unknown => reports.push(progress);
  const { outcome, received } = await runAgainst(script, (c) => c.execute("k", {}, { onProgress }));
  assert.ok(!(outcome instanceof ToolscoutError));
  assert.deepEqual([outcome.tool_key, reports], ["k", [1, 2]]);
  assert.equal(received.length, 3);
  assert.ok(received.every(({ head }) => /accept: text\/event-stream/i.test(head)));
  assert.equal(new Set(received.map(({ head }) => /idempotency-key: (\S+)/i.exec(head)?.[1])).size, 1);
  assert.deepEqual(JSON.parse(received[0]?.body ?? ""), { tool_key: "k", arguments: {} });
});

test("an error event is thrown as the error that a response would be", async () => {
  const problem = { status: 502, code: "TOOL_EXECUTION_ERROR", detail: "broken", outcome: "unknown" };
  const onProgress = (): void => undefined;
  const script = [streamResponse(event("progress", PROGRESS), event("error", problem)), EXECUTED];
  const { outcome, received } = await runAgainst(script, (c) => c.execute("k", {}, { onProgress }));
  assert.ok(outcome instanceof ToolFailed);
  assert.deepEqual([outcome.status, outcome.outcome, outcome.message, received.length], [502, "unknown", "broken", 1]);
});

test("what onProgress throws is thrown, and is no lost answer", async () => {
  const onProgress = (): void => {
    throw new RangeError("of the caller");
  };
  const script = [streamResponse(event("progress", PROGRESS), event("result", {})), EXECUTED];
  const operation = async (c: Toolscout): Promise<unknown> =>
    c.execute("k", {}, { onProgress }).catch((error: unknown) => ({ error }));
  const { outcome, received } = await runAgainst(script, operation);
  assert.ok((outcome as { error: unknown }).error instanceof RangeError);
  assert.equal(received.length, 1);
});

test("the events of a run go on after a lost connection, and end with the run", async () => {
  const [queued, running, ended] = ["queued", "running", "succeeded"].map((state) => ({ id: "r", state }));
  const script = [
    streamResponse(event("progress", queued)),
    streamResponse(event("progress", running), event("run", ended)),
  ];
  const { outcome, received } = await runAgainst(script, (c) => collect(c.runs.events("r")));
  assert.deepEqual(outcome, [queued, running, ended]);
  assert.equal(received.length, 2);
});

test("events of a run that cannot be read throw", async () => {
  const script = [problemResponse("404 Not Found", "not_found")];
  const { outcome } = await runAgainst(script, (c) => collect(c.runs.events("r")));
  assert.ok(outcome instanceof NotFound);
});

test("a loop over events that is left, or aborted, closes the connection", { timeout: 20_000 }, async () => {
  const half = streamResponse(event("progress", { id: "r", state: "queued" }));
  for (const leave of ["break", "abort"]) {
    const server = createServer();
    const closed = new Promise((resolve) => {
      server.on("connection", (socket) => socket.once("data", () => socket.write(half)).once("close", resolve));
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const controller = new AbortController();
    const read = async (): Promise<void> => {
      for await (const _run of new Toolscout({ url, key: "a-key" }).runs.events("r", { signal: controller.signal })) {
        if (leave === "break") {
          return;
        }
        controller.abort();
      }
    };
    await (leave === "break" ? read() : assert.rejects(read(), { name: "AbortError" }));
    await closed;
    server.close().unref(); // fetch of Node.js 20 has opened another connection, and keeps it for four seconds
  }
});

test("a stream may take longer than the timeout, which is for its beginning", async () => {
  const { readable, writable } = new TextEncoderStream();
  const write = async (): Promise<void> => {
    const writer = writable.getWriter();
    for (const block of [event("progress", PROGRESS), ": still here\n\n", event("result", { tool_key: "k" })]) {
      await sleep(60);
      await writer.write(block);
    }
  };
  const fetch: typeof globalThis.fetch = async (_url, init) => {
    const aborted = sleep(1_000, init?.signal ?? undefined);
    const failing = readable.pipeThrough(new TransformStream({ start: (c) => void aborted.catch((e) => c.error(e)) }));
    void write().catch(() => undefined);
    return new Response(failing, { headers: { "Content-Type": "text/event-stream" } });
  };
  const client = new Toolscout({ url: "http://127.0.0.1:9", key: "a-key", timeoutMs: 100, fetch });
  const response = await client.request("POST", "/execute", { onProgress: () => undefined });
  assert.deepEqual(await response.json(), { tool_key: "k" });
});

test("a pause is slightly longer than Retry-After", () => {
  const policy = new RetryPolicy({ retries: 1, retrySafe: false, waitMs: 0 });
  const error = new Unavailable("busy", { code: "unavailable", retryAfter: 7 });
  const pause = policy.nextPause({ kind: "answered", error });
  assert.ok(pause > 7_000 && pause < 8_000);
});

test("pauses grow up to a limit and have jitter", () => {
  const collectPauses = (): number[] => {
    const policy = new RetryPolicy({ retries: 12, retrySafe: true, waitMs: 0 });
    const error = new ConnectionFailed("refused", { code: "connection_failed" });
    return Array.from({ length: 12 }, () => policy.nextPause({ kind: "refused", error }));
  };
  const [one, other] = [collectPauses(), collectPauses()];
  assert.notDeepEqual(one, other);
  assert.ok((one[0] ?? 0) <= 100 && (one[3] ?? 0) > 100);
  assert.ok(one.slice(-3).every((pause) => pause >= MAX_PAUSE_MS / 2 && pause <= MAX_PAUSE_MS));
});

test("waiting for a lost execution ends after its timeout", () => {
  const policy = new RetryPolicy({ retries: 3, retrySafe: true, waitMs: -1 });
  policy.nextPause({ kind: "lost", error: new ConnectionFailed("lost", { code: "connection_failed" }) });
  const conflict = new Conflict("still running", { code: "conflict" });
  assert.throws(() => policy.nextPause({ kind: "answered", error: conflict }), ConnectionFailed);
});
