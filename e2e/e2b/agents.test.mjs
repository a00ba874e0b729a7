// The same by way of the sandboxes of OpenAI's agents, whose place of work is /workspace.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Manifest, file } from "@openai/agents-core/sandbox";
import { E2BSandboxClient } from "@openai/agents-extensions/sandbox/e2b";

test("create, run, write, read and close by @openai/agents-extensions", async () => {
  const client = new E2BSandboxClient({ timeout: 120, env: { OF: "its creator" } });
  const session = await client.create(new Manifest({ entries: { "docs/README.md": file({ content: "# Hello\n" }) } }));
  try {
    const said = await session.execCommand({ cmd: "pwd; echo $OF; cat docs/README.md; touch here; stat -c %U /workspace here" });
    assert.match(said, /\/workspace\nits creator\n# Hello\nuser\nuser/);
    await session.sandbox.files.write("/workspace/src/deep/a.txt", "text");
    assert.equal(new TextDecoder().decode(await session.readFile({ path: "src/deep/a.txt" })), "text");
  } finally {
    await session.close();
  }
});
