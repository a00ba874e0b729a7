// Before and after a restart of the service: what is left and what is found again.
import assert from "node:assert/strict";
import { readFile, writeFile } from "node:fs/promises";
import { e2b, eventually, Sandbox } from "./lab.mjs";

const [phase, file] = process.argv.slice(2);

async function begin() {
  const boxes = [];
  for (let i = 0; i < 4; i++) {
    const box = await Sandbox.create({ timeoutMs: 600_000, metadata: { number: `${i}` } });
    await box.files.write("number", `${i}`);
    await box.commands.run(`echo ${i} > /opt/number 2>/dev/null || echo ${i} > /tmp/number`);
    const command = await box.commands.run("echo begun; while [ ! -e go ]; do sleep 0.1; done; echo went; exit 7", { background: true, timeoutMs: 0 });
    await command.disconnect();
    if (i === 3) await box.pause();
    boxes.push({ id: box.sandboxId, pid: command.pid, endAt: (await box.getInfo()).endAt });
  }
  const short = await Sandbox.create({ timeoutMs: 5_000 });
  await writeFile(file, JSON.stringify({ boxes, short: short.sandboxId }));
}

async function goOn() {
  const { boxes, short } = JSON.parse(await readFile(file, "utf8"));
  for (const [i, { id, pid, endAt }] of boxes.entries()) {
    const info = await Sandbox.getInfo(id);
    assert.equal(info.state, i === 3 ? "paused" : "running");
    assert.equal(info.endAt.getTime(), new Date(endAt).getTime());
    const box = await Sandbox.connect(id, { timeoutMs: 60_000 });
    assert.equal(await box.files.read("number"), `${i}`);
    assert.equal((await box.commands.run("cat /opt/number 2>/dev/null || cat /tmp/number")).stdout, `${i}\n`);
    const command = await box.commands.connect(pid);
    await box.files.write("go", "");
    await assert.rejects(command.wait(), (err) => err instanceof e2b.CommandExitError && err.exitCode === 7 && err.stdout.endsWith("went\n"));
    assert.equal(await box.kill(), true);
  }
  await eventually(async () => !(await Sandbox.kill(short)), "the one with the short life has ended");
}

await (phase === "begin" ? begin() : goOn());
