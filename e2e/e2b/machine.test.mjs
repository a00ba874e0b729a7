// A sandbox is one machine for all its commands: the same steps as by our own doors.
import assert from "node:assert/strict";
import { test } from "node:test";
import { sandbox } from "./lab.mjs";

test("one machine", async () => {
  const box = await sandbox();
  for (const { commands, says } of JSON.parse(process.env.E2B_TEST_ONE_MACHINE)) {
    for (const { stdout, stderr } of await Promise.all(commands.map((command) => box.commands.run(command, { timeoutMs: 300_000 })))) {
      assert.deepEqual([stdout, stderr], [says, ""]);
    }
  }
});
