// The same by way of ComputeSDK's provider, which knows E2B alone.
import assert from "node:assert/strict";
import { test } from "node:test";
import { e2b } from "@computesdk/e2b";

test("create, run and destroy by @computesdk/e2b", async () => {
  const sdk = e2b({ apiKey: process.env.E2B_API_KEY });
  const box = await sdk.sandbox.create({ timeout: 120_000, envs: { OF: "its creator" } });
  try {
    const result = await box.runCommand("echo $OF; echo err >&2; exit 3");
    assert.deepEqual([result.exitCode, result.stdout, result.stderr], [3, "its creator\n", "err\n"]);
    await box.filesystem.writeFile("/tmp/hello", "text");
    assert.equal(await box.filesystem.readFile("/tmp/hello"), "text");
    assert.equal((await sdk.sandbox.getById(box.sandboxId)).sandboxId, box.sandboxId);
  } finally {
    await box.destroy();
  }
  assert.equal(await sdk.sandbox.getById(box.sandboxId), null);
});
