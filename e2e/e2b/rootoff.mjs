// A sandbox that was made while root was allowed: begin makes it, allowed and refused say how it is with root now.
import assert from "node:assert/strict";
import { readFile, writeFile } from "node:fs/promises";
import { Sandbox } from "./lab.mjs";

const [phase, file] = process.argv.slice(2);
const root = { user: "root" };

async function begin() {
  const box = await Sandbox.create({ timeoutMs: 600_000, allowInternetAccess: false });
  await box.commands.run("echo kept > secret", root);
  const terminal = await box.pty.create({ cols: 80, rows: 24, timeoutMs: 0, onData: () => {}, ...root });
  await writeFile(file, JSON.stringify({ id: box.sandboxId, pid: terminal.pid }));
}

async function allowed(box) {
  assert.equal((await box.commands.run("id -u; cat secret", root)).stdout, "0\nkept\n");
  assert.equal(await box.files.read("secret", root), "kept\n");
  await box.pty.sendInput(pid, new TextEncoder().encode("true\n"));
}

async function refused(box) {
  const named = /e2b\.allowRoot/;
  await assert.rejects(box.commands.run("id", root), named);
  await assert.rejects(box.pty.create({ cols: 80, rows: 24, onData: () => {}, ...root }), named);
  await assert.rejects(box.pty.sendInput(pid, new TextEncoder().encode("id > /home/user/typed\n")), named);
  await assert.rejects(box.files.read("secret", root), named);
  await assert.rejects(box.files.write("secret", "another", root), named);
  await assert.rejects(box.files.list("/root", root), named);
  assert.equal((await box.commands.run("id -un")).stdout, "user\n");
}

if (phase === "begin") await begin();
const { id, pid } = JSON.parse(await readFile(file));
const box = await Sandbox.connect(id);
await { begin: allowed, allowed, refused }[phase](box);
process.exit(0);
