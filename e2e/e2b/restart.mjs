// Before and after a restart of the service: what is left and what is found again.
import assert from "node:assert/strict";
import { readFile, writeFile } from "node:fs/promises";
import { e2b, eventually, Sandbox } from "./lab.mjs";

const [phase, file] = process.argv.slice(2);
const count = Number(process.env.E2B_TEST_SANDBOXES);
const isPaused = (i) => i % 5 === 3;

// each does something for all of a list, some at a time.
async function each(list, work) {
  const rest = [...list.entries()];
  const results = [];
  await Promise.all(Array.from({ length: 5 }, async () => {
    for (let next; (next = rest.shift()); ) results[next[0]] = await work(next[1], next[0]);
  }));
  return results;
}

// A command that prints until it is told to end, starting no program for that, and one that prints more than is kept.
const counts = "mkfifo never; exec 3<>never; i=0; while [ ! -e go ]; do echo $((i++)); read -t 0.1 -u 3; done; echo went; exit 7";
const prints = "sleep 1; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo the end";

async function begin() {
  await assert.rejects(async () => (await Sandbox.create({ timeoutMs: 60_000 })).commands.run("id", { user: "root" }), /e2b\.allowRoot/);
  const boxes = await each(Array(count).fill(), async (_, i) => {
    const box = await Sandbox.create({ timeoutMs: 600_000, metadata: { number: `${i}` }, allowInternetAccess: false });
    await box.files.write("number", `${i}`);
    await box.commands.run(`echo ${i} > /var/number 2>/dev/null || echo ${i} > /var/tmp/number`);
    const begun = Date.now();
    const command = await box.commands.run(i === 0 ? prints : counts, { background: true, timeoutMs: 0 });
    await command.disconnect();
    const read = Math.ceil((Date.now() - begun) / 100) + 50; // lines, at most: a service that is busy sees later that its reader has left
    if (isPaused(i)) await box.pause();
    return { id: box.sandboxId, pid: command.pid, read, endAt: (await box.getInfo()).endAt };
  });
  const short = await Sandbox.create({ timeoutMs: 5_000, allowInternetAccess: false });
  await writeFile(file, JSON.stringify({ boxes, short: short.sandboxId }));
}

// kept is what a command has printed by its end, told to who has connected to it again.
async function kept(box, { pid, read }, i) {
  let text = "";
  const command = await box.commands.connect(pid, { onStdout: (data) => void (text += data) });
  await box.files.write("go", "");
  if (i === 0) {
    await command.wait();
    assert(text.endsWith("x\nthe end\n") && text.length <= 1 << 20 && text.length > 1 << 19, `${text.length} bytes, ${text.slice(-20)}`);
    return;
  }
  await assert.rejects(command.wait(), (err) => err instanceof e2b.CommandExitError && err.exitCode === 7);
  const lines = text.trimEnd().split("\n");
  assert.equal(lines.pop(), "went");
  // What came before it was left had its reader; from then on nothing is missing.
  assert.deepEqual(lines, lines.map((_, n) => `${n + Number(lines[0])}`));
  assert(Number(lines[0]) <= read && (lines.length > 5 || isPaused(i)), text);
}

async function goOn() {
  const { boxes, short } = JSON.parse(await readFile(file, "utf8"));
  const listed = new Set();
  for (const pages = Sandbox.list(); pages.hasNext; ) for (const { sandboxId } of await pages.nextItems()) listed.add(sandboxId);
  assert.deepEqual(boxes.filter(({ id }) => !listed.has(id)), []);
  await each(boxes, async ({ id, endAt, ...command }, i) => {
    const info = await Sandbox.getInfo(id);
    assert.deepEqual([info.state, info.metadata.number], [isPaused(i) ? "paused" : "running", `${i}`]);
    assert.equal(info.endAt.getTime(), new Date(endAt).getTime());
    const box = await Sandbox.connect(id, { timeoutMs: 60_000 });
    assert.equal(await box.files.read("number"), `${i}`);
    assert.equal((await box.commands.run("cat /var/number 2>/dev/null || cat /var/tmp/number")).stdout, `${i}\n`);
    await kept(box, command, i);
    assert.equal(await box.kill(), true);
  });
  await eventually(async () => !(await Sandbox.kill(short)), "the one with the short life has ended");
}

await (phase === "begin" ? begin() : goOn());
