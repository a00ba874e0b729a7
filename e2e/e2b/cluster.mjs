// Sandboxes of several hosts, by the doors of all of them: E2B_TEST_DOORS.
import assert from "node:assert/strict";
import { request } from "node:https";
import { e2b, eventually, Sandbox } from "./lab.mjs";

const doors = process.env.E2B_TEST_DOORS.split(",");
const other = process.env.E2B_TEST_OTHER_KEY;
const at = (door) => ({ apiUrl: doors[door % doors.length], sandboxUrl: doors[door % doors.length] });
const isGone = (err) => /NotFound/.test(err.constructor.name);

async function listed(door) {
  const ids = new Set();
  for (const pages = Sandbox.list(at(door)); pages.hasNext; ) for (const { sandboxId } of await pages.nextItems()) ids.add(sandboxId);
  return ids;
}

// everyDoor does what clients do with one sandbox, each by another door.
async function everyDoor(id) {
  for (const door of doors.keys()) {
    const [box, next, last] = await Promise.all([0, 1, 2].map((n) => Sandbox.connect(id, at(door + n))));
    assert.equal((await box.commands.run("echo $((40 + 2)) >&2; exit 3").catch((err) => err)).stderr, "42\n");
    const large = "x".repeat(1 << 20) + door;
    await box.files.write(`large${door}`, large);
    assert.equal(await next.files.read(`large${door}`), large);
    assert((await last.files.list(".")).some(({ name }) => name === `large${door}`));
    assert.equal(await (await fetch(await next.downloadUrl(`large${door}`, { useSignatureExpiration: 60 }))).text(), large);

    const events = [];
    const watch = await box.files.watchDir(".", (event) => events.push(event.name));
    await last.files.write(`seen${door}`, "");
    await eventually(() => events.includes(`seen${door}`), "the event of a write by another door");
    await watch.stop();

    const command = await box.commands.run("while read -r line; do echo got $line; done; echo end", { background: true, stdin: true, timeoutMs: 0 });
    let text = "";
    const follower = await next.commands.connect(command.pid, { onStdout: (data) => void (text += data) });
    await last.commands.sendStdin(command.pid, "one\n");
    await eventually(() => text === "got one\n", "what a command prints by another door");
    assert((await last.commands.list()).some(({ pid }) => pid === command.pid));
    assert.equal(await last.commands.kill(command.pid), true);
    await assert.rejects(follower.wait(), e2b.CommandExitError);
    await assert.rejects(command.wait(), e2b.CommandExitError);
  }
  await Sandbox.setTimeout(id, 3_000_000, at(1));
  const until = (await Sandbox.getInfo(id, at(2))).endAt.getTime() - Date.now();
  assert(until > 2_900_000 && until <= 3_000_000, `${until}`);
  assert.equal(await Sandbox.pause(id, at(0)), true);
  for (const door of doors.keys()) assert.equal((await Sandbox.getInfo(id, at(door))).state, "paused");
  assert.equal((await (await Sandbox.connect(id, at(1))).commands.run("cat seen0 && echo awake")).stdout, "awake\n");
}

// port asks for something at a port of a sandbox's, by a door that its host's name does not lead to.
function port(door, id, headers) {
  const url = new URL(doors[door]);
  return new Promise((done, failed) => {
    const asked = request({ host: url.hostname, port: url.port, path: "/x?a=1;b", rejectUnauthorized: false, headers: { host: `8080-${id}.boxes.test`, ...headers } });
    asked.on("response", (answer) => {
      let text = "";
      answer.on("data", (data) => (text += data)).on("end", () => done({ status: answer.statusCode, text }));
    });
    asked.on("upgrade", (answer, socket, head) => {
      let text = head.toString();
      socket.on("data", (data) => (text += data)).on("end", () => done({ status: answer.statusCode, text })).write("ping\n");
    });
    asked.on("error", failed).end();
  });
}

// A program at a port. It answers with what it was sent, and with a status and a header that mean something between hosts; or
// becomes something else.
const listens = (answer) => `perl -e '
  socket(S, 2, 1, 0); setsockopt(S, 1, 2, pack("l", 1)); bind(S, pack("S n a4 x8", 2, 8080, "\\x7f\\0\\0\\1")) or die; listen(S, 9);
  while (accept(C, S)) { $said = ""; while (($line = <C>) =~ /\\S/) { $said .= $line } select(C); $| = 1; ${answer} close(C) }'`;
const says = listens('print "HTTP/1.1 421 Mine\\r\\nX-Daycare-Moved: true\\r\\nConnection: close\\r\\n\\r\\n$said";');
const upgrades = listens('print "HTTP/1.1 101 Yes\\r\\nConnection: Upgrade\\r\\nUpgrade: lines\\r\\n\\r\\n"; $line = <C>; print "pong to $line";');

async function ports(id) {
  const box = await Sandbox.connect(id, at(0));
  for (const [program, headers, check] of [
    [says, { authorization: "Bearer mine" }, ({ status, text }) => status === 421 && text.startsWith("GET /x?a=1;b ") && text.includes("Authorization: Bearer mine") && text.includes(`Host: 8080-${id}.boxes.test`) && !/daycare/i.test(text)],
    [upgrades, { connection: "Upgrade", upgrade: "lines" }, ({ status, text }) => status === 101 && text === "pong to ping\n"],
  ]) {
    const server = await box.commands.run(program, { background: true, timeoutMs: 0 });
    for (const door of doors.keys()) {
      let last;
      await eventually(async () => check((last = await port(door, id, headers))), `a port by door ${door}`).catch((err) => assert.fail(`${err.message}: ${JSON.stringify(last)}`));
    }
    await server.kill();
  }
}

// Another's sandbox is there for nobody, by any door.
async function others(id) {
  const own = await Sandbox.create({ ...at(0), apiKey: other, timeoutMs: 600_000 });
  const token = await (await fetch(`${doors[0]}/sandboxes/${own.sandboxId}/connect`, { method: "POST", body: '{"timeout":60}', headers: { "x-api-key": other } })).json();
  for (const door of doors.keys()) {
    const options = { ...at(door), apiKey: other };
    await assert.rejects(Sandbox.getInfo(id, options), isGone);
    await assert.rejects(Sandbox.connect(id, options), isGone);
    await assert.rejects(Sandbox.setTimeout(id, 1000, options), isGone);
    assert.equal(await Sandbox.kill(id, options), false);
    assert(!(await listed(door)).has(own.sandboxId));
    for (const path of ["/files?path=x", "/envs", "/metrics", "/health"]) {
      const answer = await fetch(doors[door] + path, { headers: { "e2b-sandbox-id": id, "x-access-token": token.envdAccessToken } });
      assert.equal(answer.status, 404, path);
    }
    const answer = await fetch(`${doors[door]}/process.Process/List`, {
      method: "POST", body: "{}", headers: { "content-type": "application/json", "e2b-sandbox-id": id, "x-access-token": token.envdAccessToken },
    });
    assert.equal(answer.status, 404);
    assert.equal((await fetch(`${doors[door]}/v2/sandboxes`)).status, 401);
  }
  assert.equal(await own.kill(), true);
}

async function answers() {
  const boxes = [];
  for (const door of doors.keys()) boxes.push(await Sandbox.create({ ...at(door), timeoutMs: 600_000, metadata: { door: `${door}` }, envs: { OF: "all" } }));
  await Promise.all(boxes.map(({ sandboxId }) => everyDoor(sandboxId)));
  const ids = boxes.map(({ sandboxId }) => sandboxId);
  for (const door of doors.keys()) {
    const found = await listed(door);
    assert.deepEqual(ids.filter((id) => !found.has(id)), []);
    assert.equal((await boxes[door].commands.run("echo $OF")).stdout, "all\n");
  }
  await ports(ids[0]);
  await others(ids[1]);
  for (const [i, id] of ids.entries()) {
    assert.equal(await Sandbox.kill(id, at(i + 1)), true);
    for (const door of doors.keys()) {
      assert(!(await listed(door)).has(id));
      assert.equal(await Sandbox.kill(id, at(door)), false);
      await assert.rejects(boxes[i].commands.run("true"), isGone);
    }
  }
}

// leave makes sandboxes on all hosts, to be found when one of these is lost.
async function leave() {
  const make = async (kind, timeoutMs) => {
    const boxes = [];
    for (const door of doors.keys()) {
      const box = await Sandbox.create({ ...at(door), timeoutMs, metadata: { kind } });
      await box.files.write("kept", kind);
      await box.commands.run("echo lost > /var/tmp/lost");
      await (await box.commands.run("sleep 7101", { background: true, timeoutMs: 0 })).disconnect();
      boxes.push(box);
    }
    return boxes;
  };
  const persistent = await make("persistent", 600_000);
  const paused = await make("paused", 600_000);
  for (const box of paused) await box.pause();
  const short = await make("short", 30_000);
  const ids = (boxes) => boxes.map(({ sandboxId }) => sandboxId);
  console.log(JSON.stringify({ persistent: ids(persistent), paused: ids(paused), short: ids(short) }));
}

// follow waits for a command of a sandbox that is lost, by the door of another host.
async function follow(id, door) {
  const box = await Sandbox.connect(id, at(Number(door)));
  const command = await box.commands.run("echo begun; sleep 7102", { background: true, timeoutMs: 0, onStdout: () => console.log("begun") });
  const error = await command.wait().catch((err) => err);
  console.log(`${error.constructor.name}: ${error.message}`);
  assert(error instanceof Error && !(error instanceof e2b.CommandExitError), "the command is told to have ended");
}

// find finds a sandbox again by a door. One of a lost host has moved to another; one of another may have, whose etcd was the lost one's.
async function find(id, door, must) {
  const box = await eventually(() => Sandbox.connect(id, at(Number(door))).catch(() => undefined), "it is found", 60_000);
  assert.equal(await box.files.read("kept"), (await box.getInfo()).metadata.kind);
  const run = await box.commands.run("cat kept; cat /var/tmp/lost || true");
  const told = (await box.getInfo()).metadata["daycare.restarted"];
  if (must === "moved") assert(told);
  assert.equal(/lost\n$/.test(run.stdout), !told, run.stdout);
  assert.equal((await box.commands.list()).length, told ? 0 : 1);
  if (told) assert.match(told, /started again from its home alone, as host host-\d was lost/);
  console.log(told ?? "as it was");
}

const [phase, ...args] = process.argv.slice(2);
await { answers, leave, follow, find, end: (...ids) => Promise.all(ids.map((id) => Sandbox.kill(id, at(0)))) }[phase](...args);
process.exit(0); // whatever the client has left open
