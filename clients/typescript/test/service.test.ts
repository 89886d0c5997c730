/**
 * Every method against a real Toolscout: `TOOLSCOUT_URL=… TOOLSCOUT_ADMIN_KEY=… npm test`.
 *
 * Needs the demo catalogue of a fresh start (`make run`), whose user `demo` has the tools of the server `toolbox`.
 */

import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import {
  ArgumentsInvalid,
  collect,
  ConfirmationRequired,
  Conflict,
  Forbidden,
  hasEnded,
  InvalidInput,
  NotFound,
  ToolFailed,
  Toolscout,
  ToolscoutError,
  Unauthenticated,
} from "../src/index.js";

const { TOOLSCOUT_URL: url = "", TOOLSCOUT_ADMIN_KEY: key = "" } = process.env;
const skip = url === "" || key === "" ? "set TOOLSCOUT_URL and TOOLSCOUT_ADMIN_KEY" : false;

const MESSAGE = "what's the weather in Oslo tomorrow?";
const PLACE = { type: "object", properties: { place: { type: "string" } }, required: ["place"] };
const FORECAST = {
  name: "get_forecast",
  description: "The expected weather at a place for the coming days: rain, wind.",
  inputSchema: PLACE,
};
const MAIL = { name: "send_mail", description: "Sends a mail to somebody.", inputSchema: { type: "object" } };

const unique = (name: string): string => `${name}-${crypto.randomUUID().slice(0, 8)}`;

describe("against a real Toolscout", { skip }, () => {
  let admin: Toolscout;
  let demo: Toolscout;

  before(() => {
    admin = new Toolscout({ url, key });
    demo = admin.forUser("demo");
  });

  /** Return a client of a new user with these tools. */
  async function addUser(...tools: object[]): Promise<{ id: string; client: Toolscout; serverId: string }> {
    const id = unique("typescript");
    await admin.users.create(id);
    const client = admin.forUser(id);
    const server = await client.servers.create("sky", "push", { tags: ["weather"] });
    const run = await client.servers.pushTools(server.id, tools, { wait: true });
    assert.deepEqual([run.state, hasEnded(run), run.counts["added"]], ["succeeded", true, tools.length]);
    return { id, client, serverId: server.id };
  }

  test("a tool is found, run by its key, and run by the model's tool call", async () => {
    const found = await demo.discover("what time is it in Tokyo?", { format: "openai" });
    assert.equal(found.confidence, "high");
    assert.equal(found.definitions[0]?.function.name, "get_current_time");
    assert.equal(found.keyOf("get_current_time"), found.toolKeys[0]);
    assert.throws(() => found.keyOf("made_up"), NotFound);
    assert.ok(found.tokens.saved_percent > 50);

    const done = await demo.execute(found.keyOf("get_current_time"), { timezone: "Tokyo" }, { discoveryId: found.discovery_id });
    assert.equal(done.isError, false);
    assert.match(done.text, /Asia\/Tokyo/);
    const toolCall = { type: "function", function: { name: "get_current_time", arguments: '{"timezone": "Lima"}' } } as const;
    assert.match((await demo.execute({ toolCall })).text, /America\/Lima/);
    const again = await demo.discover({ query: "and in Lima?", keep: found.toolKeys, format: "anthropic" });
    assert.deepEqual(again.toolKeys.slice(0, found.toolKeys.length), found.toolKeys);
    assert.ok(again.definitions[0]?.input_schema);
  });

  test("changes of the tools come ready for the model's API", async () => {
    const first = await demo.discover("what time is it in Tokyo?", { format: "anthropic", keep: [] });
    assert.deepEqual([first.added, first.removed], [first.toolKeys, []]);
    assert.equal(first.changes?.message.role, "system");
    assert.ok(first.changes.betas.length > 0);
    const [block] = first.changes.message.content;
    assert.ok(block?.type === "tool_addition");
    assert.deepEqual(block.tool.definition, first.definitions[0]);

    const same = await demo.discover("what time is it in Tokyo?", { format: "anthropic", keep: first });
    assert.deepEqual([same.added, same.removed, same.changes], [[], [], null]);
    assert.equal(same.toolset_hash_before, first.toolset_hash);
    const next = await demo.discover("calculate (17.5 + 4) * 3", { format: "openai_responses", keep: first.toolKeys });
    assert.ok((next.added?.length ?? 0) > 0);
    const names = next.changes?.message.tools.map((tool) => tool.name);
    assert.deepEqual(names, next.tools.filter((tool) => next.added?.includes(tool.tool_key)).map((tool) => tool.alias));
    const without = await demo.discover("what time is it in Tokyo?", { format: "anthropic" });
    assert.deepEqual([without.added, without.removed, without.changes], [null, null, null]);
  });

  test("a call with the same idempotency key runs once, and a destructive call needs a confirmation", async () => {
    const options = { idempotencyKey: crypto.randomUUID() };
    const first = await demo.execute("toolbox.add_note", { text: "buy milk" }, options);
    const second = await demo.execute("toolbox.add_note", { text: "buy milk" }, options);
    assert.deepEqual(second.result, first.result);
    const note = first.result.structuredContent as { id: number };
    const call = { toolKey: "toolbox.delete_note", arguments: { note_id: note.id } };
    const error = await demo.execute(call).then(
      () => null,
      (reason: unknown) => reason,
    );
    if (error !== null) {
      // where the operator has set TOOLSCOUT_CONFIRM_DESTRUCTIVE
      assert.ok(error instanceof ConfirmationRequired);
      await demo.execute({ ...call, confirmationToken: error.token });
    }
    const notes = await demo.execute("toolbox.list_notes");
    assert.ok(!notes.text.includes(`"id": ${note.id},`));
  });

  test("each kind of failure has its own class", async () => {
    const { client } = await addUser(FORECAST, MAIL);
    const thrown = async (operation: Promise<unknown>): Promise<ToolscoutError> => {
      const reason: unknown = await operation.then(() => assert.fail("nothing was thrown"), (error: unknown) => error);
      assert.ok(reason instanceof ToolscoutError, String(reason));
      return reason;
    };
    const invalid = await thrown(client.execute("sky.get_forecast", { place: 1 }));
    assert.equal(invalid.constructor, ArgumentsInvalid);
    assert.deepEqual([invalid.code, invalid.status, invalid.errors.length], ["TOOL_VALIDATION_ERROR", 422, 1]);
    assert.ok(invalid.requestId);
    const pushed = await thrown(client.execute("sky.send_mail"));
    assert.equal(pushed.constructor, ToolFailed);
    assert.deepEqual([pushed.outcome, pushed.failureCause, pushed.server, pushed.tool], ["failed", "push", "sky", "send_mail"]);
    assert.equal((await thrown(client.execute(crypto.randomUUID()))).constructor, NotFound);
    assert.equal((await thrown(client.discover({}))).constructor, InvalidInput);
    assert.equal((await thrown(client.servers.create("sky", "push"))).constructor, Conflict);
    const stranger = new Toolscout({ url, key: "unknown-key" });
    assert.equal((await thrown(stranger.discover(MESSAGE))).constructor, Unauthenticated);
  });

  test("a discovery is explained, and feedback is counted", async () => {
    const { client } = await addUser(FORECAST, MAIL);
    const [reason] = await client.why("get_forecast", MESSAGE);
    assert.deepEqual([reason?.included, reason?.reason], [true, "included"]);
    const [other] = await client.why("send_mail", { query: MESSAGE, limit: 1 });
    assert.equal(other?.included, false);
    const found = await client.discover(MESSAGE, { limit: 1, fill: true });
    await client.feedback(found.discovery_id, found.toolKeys[0] ?? "", "succeeded");
    await assert.rejects(client.feedback(crypto.randomUUID(), found.toolKeys[0] ?? "", "called"), NotFound);
  });

  test("a conversation is remembered for its user until it is deleted", async () => {
    const { client } = await addUser(FORECAST, MAIL);
    const { client: other } = await addUser(FORECAST, MAIL);
    const options = { keep: { conversationId: "a chat" }, format: "anthropic", limit: 1, fill: true } as const;
    const first = await client.discover(MESSAGE, { ...options, turn: 1 });
    assert.deepEqual(first.added, first.toolKeys);
    const feedback = { conversationId: "a chat" };
    await client.feedback(first.discovery_id, first.toolKeys[0] ?? "", "succeeded", feedback);
    const second = await client.discover(MESSAGE, { ...options, turn: 2 });
    assert.deepEqual([second.toolset_hash_before, second.added], [first.toolset_hash, []]);
    assert.deepEqual((await client.discover(MESSAGE, { ...options, turn: 1 })).added, first.added);
    await assert.rejects(other.conversations.delete("a chat"), NotFound);
    await client.conversations.delete("a chat");
    await assert.rejects(client.conversations.delete("a chat"), NotFound);
  });

  test("a tool reports its progress, and errors are the same", async () => {
    const reports: unknown[] = [];
    const onProgress = (report: unknown): unknown => reports.push(report);
    const done = await demo.execute("toolbox.get_current_time", { timezone: "Tokyo" }, { onProgress });
    assert.match(done.text, /Asia\/Tokyo/);
    const invalid = demo.execute("toolbox.get_current_time", { timezone: 5 }, { onProgress });
    await assert.rejects(invalid, ArgumentsInvalid);
    await assert.rejects(demo.execute("toolbox.made_up", {}, { onProgress }), NotFound);
  });

  test("the events of an index run end with the run", async () => {
    const { client, serverId } = await addUser(FORECAST, MAIL);
    const started = await client.servers.reindex(serverId, { force: true });
    const runs = await collect(client.runs.events(started.id));
    assert.deepEqual(runs.slice(0, -1).filter(hasEnded), []);
    const ended = runs.at(-1);
    assert.deepEqual([ended?.id, ended?.state, ended?.counts["embedded"]], [started.id, "succeeded", 2]);
    await assert.rejects(collect(client.runs.events("made-up")), NotFound);
  });

  test("categories are listed, and an unknown one is not found", async () => {
    assert.ok(Array.isArray(await demo.categories.list()));
    await assert.rejects(demo.categories.get("made-up"), NotFound);
    await assert.rejects(demo.categories.rename("made-up", "Weather"), NotFound);
  });

  test("the life cycle of a server", async () => {
    const { client, serverId } = await addUser(FORECAST, MAIL);
    const run = await client.servers.reindex(serverId, { force: true });
    assert.equal((await client.runs.wait(run.id)).counts["embedded"], 2);
    assert.equal((await client.runs.get(run.id)).state, "succeeded");
    const [again] = await client.servers.reindexAll();
    assert.equal((await client.runs.wait(again?.id ?? "")).server_id, serverId);
    assert.equal((await collect(client.servers.runs(serverId))).length, 3);
    const changed = await client.servers.update(serverId, { name: "papers", tags: [], toolPermissions: { send_mail: false } });
    assert.deepEqual([changed.name, changed.tags, changed.tool_permissions], ["papers", [], { send_mail: false }]);
    assert.deepEqual((await collect(client.servers.list())).map((server) => server.name), ["papers"]);
    assert.deepEqual((await client.servers.setCredentials(serverId, { "X-Key": "secret" })).header_names, ["X-Key"]);
    await client.servers.deleteCredentials(serverId);
    assert.deepEqual((await client.servers.get(serverId)).header_names, []);
    await assert.rejects(client.servers.connect(serverId), ToolscoutError);
    await assert.rejects(client.servers.disconnect(serverId), ToolscoutError);
    await client.servers.delete(serverId);
    await assert.rejects(client.servers.get(serverId), NotFound);
  });

  test("a configuration is imported, and a registry that is not set up says so", async () => {
    const { client } = await addUser();
    const mcpServers = { tickets: { url: "https://mcp.example.com/${TEAM}", disabled: true }, local: { command: "npx" } };
    const { imported, skipped } = await client.importServers({ mcpServers }, { values: { TEAM: "a" } });
    assert.deepEqual(imported.map((server) => server.url), ["https://mcp.example.com/a"]);
    assert.deepEqual(skipped.map((server) => server.name), ["local"]);
    await assert.rejects(collect(client.registry.search("weather")), ToolscoutError);
    await assert.rejects(client.registry.get("io.github.user/weather"), ToolscoutError);
    await assert.rejects(client.servers.addFromRegistry("io.github.user/weather"), ToolscoutError);
  });

  test("a list iterates over all pages", async () => {
    const names = Array.from({ length: 7 }, (_, number) => `tool_${number}`);
    const { client } = await addUser(...names.map((name) => ({ ...MAIL, name })));
    assert.deepEqual((await collect(client.tools.list({ limit: 3 }))).map((tool) => tool.name), names);
    assert.deepEqual((await collect(client.tools.list({ name: "_3" }))).map((tool) => tool.name), ["tool_3"]);
  });

  test("a tool is updated, and a changed definition is approved", async () => {
    const { client, serverId } = await addUser(FORECAST);
    const [found] = await collect(client.tools.list({ visible: true }));
    assert.ok(found);
    const changed = await client.tools.update(found.id, { enabled: false, tags: ["rain"], description: "Umbrella?" });
    assert.deepEqual([changed.enabled, changed.own_tags, changed.description], [false, ["rain"], "Umbrella?"]);
    await client.runs.wait(changed.run_id ?? "");
    await client.tools.update(found.id, { enabled: null, description: null });
    assert.ok((await client.tools.tags()).some(({ tag }) => tag === "rain"));
    await client.servers.pushTools(serverId, [{ ...FORECAST, description: "Something else." }], { wait: true });
    const [change] = await collect(client.tools.history(found.id));
    assert.deepEqual(change?.fields, ["description"]);
    const { definition_hash: definitionHash, state } = await client.tools.get(found.id);
    assert.equal(state, "changed");
    await assert.rejects(client.tools.approve(found.id, { definitionHash: found.definition_hash }), Conflict);
    assert.equal((await client.tools.approve(found.id, { definitionHash })).state, "approved");
  });

  test("examples and core tools are replaced", async () => {
    const { client } = await addUser(FORECAST);
    const [found] = await collect(client.tools.list());
    const id = found?.id ?? "";
    await client.tools.replaceExamples(id, ["do I need an umbrella"]);
    assert.deepEqual((await client.tools.examples(id)).messages, ["do I need an umbrella"]);
    await client.tools.forgetExamples(id, { source: "person" });
    await client.tools.forgetAllExamples();
    assert.deepEqual((await client.tools.examples(id)).messages, []);
    assert.deepEqual((await client.tools.replaceCore([MAIL])).tools.length, 1);
    assert.deepEqual((await client.tools.core()).tools.map((tool) => tool["name"]), ["send_mail"]);
  });

  test("rules and projects", async () => {
    const { client, serverId } = await addUser(FORECAST, MAIL);
    const rules = [{ pattern: ["*mail*"], enabled: false }];
    const { items } = await client.rules.preview(rules, { changed: true });
    assert.deepEqual(items.map(({ name, visible }) => [name, visible]), [["send_mail", false]]);
    const put = await client.rules.put(rules);
    assert.deepEqual((await client.rules.get()).rules, put.rules);
    const project = await client.projects.create("support", { readOnly: true, limit: 3, serverIds: [serverId] });
    assert.deepEqual([project.read_only, project.limit, project.server_ids], [true, 3, [serverId]]);
    const changed = await client.projects.update(project.id, { limit: null });
    assert.deepEqual(await collect(client.projects.list()), [changed]);
    assert.deepEqual(await client.projects.get(project.id), changed);
    await client.projects.delete(project.id);
    await assert.rejects(client.projects.get(project.id), NotFound);
  });

  test("users and keys, and one client that acts for many users", async () => {
    const { id } = await addUser(MAIL);
    const updated = await admin.users.update(id, { settings: { limit: 3 }, discoveryEnabled: true });
    assert.equal(updated.settings.limit, 3);
    const expiresAt = new Date(Date.now() + 86_400_000);
    const created = await admin.keys.create("user", { userId: id, expiresAt });
    assert.equal(new Date(created.expires_at ?? 0).getTime(), expiresAt.getTime());
    const alice = new Toolscout({ url, key: created.key });
    assert.equal((await collect(alice.servers.list())).length, 1);
    await assert.rejects(collect(alice.users.list()), Forbidden);
    await admin.keys.revoke(created.id);
    await assert.rejects(collect(alice.servers.list()), Unauthenticated);
    assert.ok((await collect(admin.keys.list())).some((each) => each.id === created.id && each.revoked_at));
    assert.ok((await collect(admin.users.list())).some((each) => each.id === id));
    await admin.users.delete(id);
    await assert.rejects(admin.users.get(id), NotFound);
  });

  test("the life cycle of a shared server", async () => {
    const { id } = await addUser();
    const shared = await admin.sharedServers.create(unique("shared"), "push", { userIds: [id], credentials: "operator" });
    assert.deepEqual([shared.user_ids, shared.credentials], [[id], "operator"]);
    assert.equal((await admin.sharedServers.update(shared.id, { description: "For all." })).description, "For all.");
    assert.equal((await admin.sharedServers.get(shared.id)).id, shared.id);
    assert.equal((await admin.sharedServers.reindex(shared.id)).server_id, shared.id);
    assert.ok((await collect(admin.sharedServers.list())).some((each) => each.id === shared.id));
    await admin.sharedServers.delete(shared.id);
    await assert.rejects(admin.sharedServers.get(shared.id), NotFound);
  });

  test("a list of tools is searched, and labelled messages are evaluated", async () => {
    const tools = [FORECAST, MAIL].map(({ name, description }) => ({
      toolKey: name,
      toolName: name,
      serverName: "sky",
      description,
    }));
    const { results } = await admin.forUser("demo").catalogSearch(MESSAGE, tools, { maxResults: 1 });
    assert.deepEqual(results.map(({ toolKey }) => toolKey), ["get_forecast"]);
    const { client } = await addUser(FORECAST, MAIL);
    const items = [{ message: MESSAGE, tools: ["sky.get_forecast"] }];
    const { messages, suggestions } = await client.evaluate(items, { limit: 1, suggest: true });
    assert.deepEqual([messages, suggestions?.tools], [1, 2]);
  });

  test("reports", async () => {
    const { client } = await addUser(FORECAST);
    const began = new Date(Date.now() - 3_600_000);
    assert.ok((await client.stats({ since: began, step: "hour" })).points);
    const events = await collect(client.audit({ action: "server.create", since: began }));
    assert.deepEqual(events.map(({ outcome }) => outcome), ["succeeded"]);
    assert.deepEqual(await collect(client.audit({ until: began })), []);
    assert.ok(Array.isArray(await collect(client.decisions({ noMatch: true }))));
    assert.deepEqual(await collect(client.selections({ since: began.toISOString() })), []);
    await client.deleteSelections();
  });

  test("checks of the service, and any other endpoint", async () => {
    assert.equal((await admin.health()).status, "ok");
    assert.ok((await admin.ready()).model);
    const metrics = await admin.request("GET", "/metrics");
    assert.match(await metrics.text(), /toolscout_/);
    await assert.rejects(admin.request("POST", "/rules/preview", { body: {} }), InvalidInput);
  });
});
