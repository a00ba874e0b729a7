// What other clients say, Python's among them: at the wire, because they cannot be had here.
import assert from "node:assert/strict";
import { test } from "node:test";
import { eventually, sandbox } from "./lab.mjs";

const url = process.env.E2B_SANDBOX_URL;
const box = await sandbox({ metadata: { of: "the wire" } });

async function control(method, path, body, key = process.env.E2B_API_KEY) {
  const headers = { "X-API-KEY": key, "Content-Type": "application/json" };
  const res = await fetch(url + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const text = await res.text();
  return { status: res.status, text, body: text ? JSON.parse(text) : undefined };
}

const made = (await control("POST", `/sandboxes/${box.sandboxId}/connect`, { timeout: 120 })).body;
const inside = { "E2b-Sandbox-Id": box.sandboxId, "X-Access-Token": made.envdAccessToken };

async function unary(method, message = {}, headers = {}) {
  const res = await fetch(`${url}/${method}`, { method: "POST", headers: { ...inside, "Content-Type": "application/json", ...headers }, body: JSON.stringify(message) });
  return { status: res.status, body: await res.json() };
}

// stream sends one message and calls with each that comes, until it says that it has enough.
async function stream(method, message, enough = () => false) {
  const text = Buffer.from(JSON.stringify(message));
  const head = Buffer.alloc(5);
  head.writeUInt32BE(text.length, 1);
  const leave = new AbortController();
  const res = await fetch(`${url}/${method}`, {
    method: "POST", signal: leave.signal, headers: { ...inside, "Content-Type": "application/connect+json", "Connect-Protocol-Version": "1", "Keepalive-Ping-Interval": "1" }, body: Buffer.concat([head, text]),
  });
  const seen = [];
  let rest = Buffer.alloc(0);
  try {
    for await (const piece of res.body) {
      rest = Buffer.concat([rest, piece]);
      while (rest.length >= 5 && rest.length >= 5 + rest.readUInt32BE(1)) {
        const end = 5 + rest.readUInt32BE(1);
        seen.push(JSON.parse(rest.subarray(5, end)));
        rest = rest.subarray(end);
        if (enough(seen)) return seen;
      }
    }
  } finally {
    leave.abort();
  }
  return seen;
}

for (const [what, body, field] of [
  ["mcp", { mcp: {} }, "mcp"],
  ["iam", { iam: {} }, "iam"],
  ["volumes", { volumeMounts: [{ name: "a", path: "/b" }] }, "volumeMounts"],
  ["a pause that forgets", { autoPause: true, autoPauseMemory: false }, "autoPauseMemory"],
  ["a proxy", { network: { egressProxy: { address: "x" } } }, "egressProxy"],
  ["rules", { network: { rules: { "a.example.org": [] } } }, "rules"],
  ["another Host", { network: { maskRequestHost: "x" } }, "maskRequestHost"],
  ["TLS of ports", { network: { httpsPorts: [8443] } }, "httpsPorts"],
  ["what nobody knows", { unheardOf: 1 }, "unheardOf"],
  ["what nobody knows of the network", { network: { unheardOf: 1 } }, "network.unheardOf"],
  ["a timeout in words", { timeout: "soon" }, "timeout"],
  ["a timeout in the past", { timeout: -1 }, "timeout"],
  ["a name that is none", { network: { allowOut: ["http://a.example.org/"] } }, "a.example.org"],
  ["a range with bits too many", { network: { allowOut: ["192.0.2.1/24"] } }, "192.0.2.0/24"],
  ["a range out of everything", { network: { denyOut: ["192.0.2.0/24"] } }, "denyOut"],
  ["no internet, and some", { allow_internet_access: false, network: { allowOut: ["a.example.org"] } }, "allowOut"],
]) {
  test(`create refuses ${what}`, async () => {
    const { status, body: answer } = await control("POST", "/v2/sandboxes", { templateID: "base", ...body });
    assert.equal(status, 400);
    assert.equal(answer.code, 400);
    assert(answer.message.includes(field), answer.message);
  });
}

for (const [method, path] of [
  ["POST", `/sandboxes/${box.sandboxId}/snapshots`], ["POST", `/sandboxes/${box.sandboxId}/fork`], ["GET", "/snapshots"], ["GET", "/volumes"], ["POST", "/v3/templates"],
]) {
  test(`${method} ${path.replace(box.sandboxId, "ID")} is not here`, async () => assert.equal((await control(method, path)).status, 501));
}

test("older paths", async () => {
  const { status, body } = await control("POST", "/sandboxes", { templateID: "base", timeout: 60 });
  assert.equal(status, 201);
  const path = `/sandboxes/${body.sandboxID}`;
  const listed = (await control("GET", "/sandboxes")).body.map((b) => b.sandboxID);
  assert(listed.includes(body.sandboxID) && listed.includes(box.sandboxId));
  assert.equal((await control("POST", `${path}/pause`)).status, 204);
  assert.equal((await control("POST", `${path}/pause`)).status, 409);
  assert.equal((await control("POST", `${path}/resume`, { timeout: 60, autoPause: false })).status, 201);
  assert.equal((await control("DELETE", path)).status, 204);
  assert.equal((await control("DELETE", path)).status, 404);
});

test("metrics, and those of inside", async () => {
  const [metric] = (await control("GET", `/sandboxes/${box.sandboxId}/metrics`)).body;
  assert(metric.timestampUnix > 0 && metric.memTotal > 0 && metric.cpuCount >= 1, JSON.stringify(metric));
  const res = await fetch(`${url}/metrics`, { headers: inside });
  assert((await res.json()).mem_total > 0);
});

test("the environment, and health", async () => {
  assert.equal((await fetch(`${url}/envs`, { headers: inside })).status, 200);
  assert.equal((await fetch(`${url}/health`, { headers: inside })).status, 204);
  assert.equal((await fetch(`${url}/health`, { headers: { ...inside, "X-Access-Token": "x" } })).status, 404);
});

test("a command that does not say whether it has a stdin has one", async () => {
  let answered = false;
  const seen = await stream("process.Process/Start", { process: { cmd: "/bin/cat" }, tag: "fed" }, (messages) => {
    if (!answered && messages.some((m) => m.event?.start)) {
      answered = true;
      const feed = { process: { tag: "fed" }, input: { stdin: Buffer.from("fed").toString("base64") } };
      void unary("process.Process/SendInput", feed).then(() => unary("process.Process/CloseStdin", { process: { tag: "fed" } }));
    }
    return messages.some((m) => m.event?.end);
  });
  const said = seen.flatMap((m) => m.event?.data?.stdout ?? []).map((text) => Buffer.from(text, "base64").toString());
  assert.equal(said.join(""), "fed");
});

test("a stream on which nothing happens is kept alive", async () => {
  const seen = await stream("process.Process/Start", { process: { cmd: "/bin/sleep", args: ["4718"] }, tag: "still" }, (m) => m.some((one) => one.event?.keepalive));
  assert(seen[0].event.start.pid > 0);
  assert.deepEqual((await unary("process.Process/SendSignal", { process: { tag: "still" }, signal: "SIGNAL_SIGKILL" })).body, {});
});

test("a watcher that is polled", async () => {
  await unary("filesystem.Filesystem/MakeDir", { path: "polled" });
  const { watcherId } = (await unary("filesystem.Filesystem/CreateWatcher", { path: "polled", recursive: true })).body;
  await box.files.write("polled/file", "x");
  await eventually(async () => {
    const { events = [] } = (await unary("filesystem.Filesystem/GetWatcherEvents", { watcherId })).body;
    return events.some((e) => e.name === "file" && e.type === "EVENT_TYPE_CREATE");
  }, "the file is told of");
  assert.equal((await unary("filesystem.Filesystem/RemoveWatcher", { watcherId })).status, 200);
  assert.equal((await unary("filesystem.Filesystem/GetWatcherEvents", { watcherId })).body.code, "not_found");
});

for (const [method, message, code] of [
  ["filesystem.Filesystem/Stat", { path: "none" }, "not_found"],
  ["filesystem.Filesystem/MakeDir", { path: "/home/user" }, "already_exists"],
  ["filesystem.Filesystem/Move", { source: "none", destination: "x" }, "not_found"],
  ["filesystem.Filesystem/ListDir", { path: "none" }, "not_found"],
  ["filesystem.Filesystem/Unheard", {}, "unimplemented"],
  ["process.Process/StreamInput", {}, "unimplemented"],
  ["process.Process/SendSignal", { process: { pid: 999999 }, signal: "SIGNAL_SIGTERM" }, "not_found"],
  ["process.Process/Update", { process: { pid: 999999 }, pty: { size: { cols: 1, rows: 1 } } }, "not_found"],
  ["process.Process/CloseStdin", { process: { tag: "unheard-of" } }, "not_found"],
]) {
  test(`${method} answers ${code}`, async () => assert.equal((await unary(method, message)).body.code, code));
}

test("a call with no sandbox's token", async () => {
  for (const headers of [{ "X-Access-Token": "" }, { "E2b-Sandbox-Id": "" }, { "E2b-Sandbox-Id": "s2345678901234567890" }]) {
    assert.equal((await unary("process.Process/List", {}, headers)).status, 404);
  }
});

test("a key that is none, on each route", async () => {
  for (const path of ["/v2/sandboxes", `/sandboxes/${box.sandboxId}`, `/sandboxes/${box.sandboxId}/metrics`]) {
    assert.equal((await control("GET", path, undefined, "e2b_" + "0".repeat(40))).status, 401);
  }
});
