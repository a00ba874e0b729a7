import assert from "node:assert/strict";
import { test } from "node:test";
import { eventually, sandbox } from "./lab.mjs";

const box = await sandbox();

// terminal starts one, and keeps what it shows.
async function terminal(options = {}) {
  const seen = { text: "" };
  const decoder = new TextDecoder();
  const handle = await box.pty.create({ cols: 100, rows: 30, timeoutMs: 600_000, onData: (data) => void (seen.text += decoder.decode(data, { stream: true })), ...options });
  const type = (text) => box.pty.sendInput(handle.pid, new TextEncoder().encode(text));
  return { handle, seen, type };
}

test("a terminal and its size", async () => {
  const { handle, seen, type } = await terminal({ envs: { MARK: "in-the-terminal" } });
  await type("stty size; echo $MARK; tty\n");
  await eventually(() => /30 100/.test(seen.text) && /\nin-the-terminal/.test(seen.text) && /\/dev\/pts/.test(seen.text), "the size is shown");
  await box.pty.resize(handle.pid, { cols: 120, rows: 40 });
  await type("stty size\n");
  await eventually(() => /40 120/.test(seen.text), "the new size is shown");
  await type("exit\n");
  assert.equal((await handle.wait()).exitCode, 0);
});

test("ctrl-c", async () => {
  const { handle, seen, type } = await terminal();
  await type("sleep 4717; echo ended with $?\n");
  await eventually(() => /sleep 4717/.test(seen.text), "the command is typed");
  await eventually(async () => {
    await type("\x03");
    return /ended with 130|\^C/.test(seen.text);
  }, "the command has ended");
  assert.equal(await box.pty.kill(handle.pid), true);
  await handle.wait().catch(() => {}); // it ends soon, not at once
  assert.equal(await box.pty.kill(handle.pid), false);
});
