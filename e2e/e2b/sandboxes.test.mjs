import assert from "node:assert/strict";
import { test } from "node:test";
import { before, e2b, eventually, Sandbox, sandbox } from "./lab.mjs";

const other = { apiKey: process.env.E2B_TEST_OTHER_KEY };

test("a lifetime that nobody names", async () => {
  const box = await Sandbox.create();
  try {
    const left = (await box.getInfo()).endAt.getTime() - Date.now();
    assert(left > 240_000 && left <= 300_000, `${left} ms`);
  } finally {
    await box.kill();
  }
});

test("getMetrics keeps to its range", { skip: before && "the older client names none" }, async () => {
  const box = await sandbox();
  assert.equal((await box.getMetrics({ start: new Date(Date.now() - 3_600_000), end: new Date(Date.now() - 60_000) })).length, 0);
  assert.equal((await box.getMetrics({ start: new Date(Date.now() - 3_600_000), end: new Date(Date.now() + 60_000) })).length, 1);
});

test("create, getInfo, kill", async () => {
  const box = await sandbox({ metadata: { of: "getInfo" }, timeoutMs: 60_000 });
  const info = await box.getInfo();
  assert.equal(info.sandboxId, box.sandboxId);
  assert.equal(info.templateId, "base");
  assert.deepEqual(info.metadata, { of: "getInfo" });
  assert.equal(info.state, "running");
  assert(info.cpuCount >= 1 && info.memoryMB > 0);
  assert(Math.abs(info.endAt.getTime() - Date.now() - 60_000) < 20_000);
  assert.equal(await box.isRunning(), true);
  assert.notEqual(await box.kill(), false);
  assert.equal(await box.isRunning(), false);
  assert.equal(await Sandbox.kill(box.sandboxId), false);
  await assert.rejects(box.commands.run("true"));
  await assert.rejects(Sandbox.connect(box.sandboxId), e2b.NotFoundError);
});

test("a template that there is not", async () => {
  await assert.rejects(Sandbox.create("no-such-template"), /not found/);
});

test("a key that nobody knows", async () => {
  await assert.rejects(Sandbox.create({ apiKey: "e2b_" + "0".repeat(40) }), e2b.AuthenticationError);
});

test("what cannot be kept is refused", async () => {
  await assert.rejects(Sandbox.create({ network: { maskRequestHost: "localhost" } }), /maskRequestHost/);
  await assert.rejects(Sandbox.create({ network: { allowOut: ["2001:db8::1"] } }), /allowOut/);
  if (!before) await assert.rejects(Sandbox.create({ volumeMounts: { "/data": "volume" } }), /volumeMounts/);
});

test("the deadline moves both ways", async () => {
  const box = await sandbox({ timeoutMs: 60_000 });
  const left = async () => (await box.getInfo()).endAt.getTime() - Date.now();
  await box.setTimeout(600_000);
  assert(Math.abs((await left()) - 600_000) < 20_000);
  await box.setTimeout(30_000);
  assert(Math.abs((await left()) - 30_000) < 20_000);
});

test("connect never shortens", async () => {
  const box = await sandbox({ timeoutMs: 600_000 });
  const again = await Sandbox.connect(box.sandboxId, { timeoutMs: 60_000 });
  assert((await again.getInfo()).endAt.getTime() - Date.now() > 500_000);
  await again.files.write("by-the-other", "x");
  assert.equal(await box.files.read("by-the-other"), "x");
});

test("it ends at its deadline", async () => {
  const box = await sandbox({ timeoutMs: 2_000 });
  await eventually(async () => !(await box.isRunning()), "the sandbox has ended");
  await assert.rejects(Sandbox.connect(box.sandboxId), e2b.NotFoundError);
});

test("list, by metadata, state and page", async () => {
  const mark = `m ${Date.now()} &=ä`;
  const boxes = [];
  for (let i = 0; i < 3; i++) boxes.push(await sandbox({ metadata: { mark } }));
  const ids = boxes.map((b) => b.sandboxId).sort();
  const all = async (options) => {
    const found = [];
    for (const pages = Sandbox.list(options); pages.hasNext; ) found.push(...(await pages.nextItems()));
    return found.map((b) => b.sandboxId).sort();
  };
  assert.deepEqual(await all({ query: { metadata: { mark } } }), ids);
  assert.deepEqual(await all({ query: { metadata: { mark } }, limit: 1 }), ids);
  assert.deepEqual(await all({ query: { metadata: { mark }, state: ["paused"] } }), []);
  assert.deepEqual(await all({ query: { metadata: { mark } }, ...other }), []);
});

test("another key's sandboxes do not exist", async () => {
  const box = await sandbox();
  await assert.rejects(Sandbox.connect(box.sandboxId, other), e2b.NotFoundError);
  await assert.rejects(Sandbox.getInfo(box.sandboxId, other), e2b.NotFoundError);
  await assert.rejects(Sandbox.setTimeout(box.sandboxId, 1000, other), e2b.NotFoundError);
  assert.equal(await Sandbox.kill(box.sandboxId, other), false);
  assert.equal(await box.isRunning(), true);
  const mine = await Sandbox.create({ ...other });
  try {
    const stolen = { "E2b-Sandbox-Id": box.sandboxId };
    const res = await fetch(await mine.downloadUrl("x"), { headers: stolen });
    assert.equal(res.status, 404);
    assert.equal((await fetch(`${process.env.E2B_SANDBOX_URL}/health`, { headers: stolen })).status, 404);
  } finally {
    await mine.kill();
  }
});

test("pause and resume", async () => {
  const box = await sandbox();
  await box.files.write("kept", "over the pause");
  const command = await box.commands.run("sleep 4716", { background: true });
  assert.notEqual(await (box.pause ?? box.betaPause).call(box), false);
  assert.equal((await Sandbox.getInfo(box.sandboxId)).state, "paused");
  assert.equal(await box.isRunning(), false);
  const again = await Sandbox.connect(box.sandboxId);
  assert.equal(await again.files.read("kept"), "over the pause");
  assert((await again.commands.list()).some((p) => p.pid === command.pid), "the command goes on");
});

test("at its deadline it is paused, and a call resumes it", { skip: before && "the older client cannot say so" }, async () => {
  const box = await sandbox({ timeoutMs: 2_000, lifecycle: { onTimeout: "pause", autoResume: true } });
  await box.files.write("kept", "over its deadline");
  await eventually(async () => (await Sandbox.getInfo(box.sandboxId)).state === "paused", "it is paused");
  assert.equal((await box.commands.run("cat kept")).stdout, "over its deadline");
});

test("one that is paused, and that no call may resume", async () => {
  const box = await sandbox();
  await (box.pause ?? box.betaPause).call(box);
  await assert.rejects(box.commands.run("true"), e2b.NotFoundError); // both are what clients make of 502
  await assert.rejects(box.files.read("none"), e2b.TimeoutError);
  assert.equal((await Sandbox.getInfo(box.sandboxId)).state, "paused");
});

test("metrics", async () => {
  const box = await sandbox();
  const [metric] = await box.getMetrics();
  assert(metric.memUsed > 0 && metric.memTotal >= metric.memUsed && metric.cpuCount >= 1 && metric.diskUsed > 0 && metric.diskTotal > metric.diskUsed, JSON.stringify(metric));
});
