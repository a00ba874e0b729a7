import assert from "node:assert/strict";
import { test } from "node:test";
import { Sandbox, e2b, eventually } from "./lab.mjs";

for (const [how, end] of Object.entries({ killed: (box) => box.kill(), "at its deadline": (box) => box.setTimeout(1000) })) {
  test(`a sandbox that is ${how} during a command says so`, async () => {
    const box = await Sandbox.create({ timeoutMs: 120_000 });
    const command = await box.commands.run("sleep 4714", { background: true, timeoutMs: 0 });
    const ended = assert.rejects(command.wait(), (error) => {
      assert(error instanceof e2b.TimeoutError, error);
      assert.match(error.message, /killed or reached its end of life/);
      return true;
    });
    await end(box);
    await ended;
    await eventually(async () => !(await box.isRunning()), "the sandbox has ended");
    await assert.rejects(box.files.read("x"), /The sandbox was not found/);
  });
}
