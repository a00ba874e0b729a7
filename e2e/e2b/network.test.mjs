import assert from "node:assert/strict";
import { test } from "node:test";
import { before, e2b, sandbox } from "./lab.mjs";

const allowed = process.env.E2B_TEST_ALLOWED;
const denied = process.env.E2B_TEST_DENIED;

// reaches reports whether a sandbox gets an answer from a name.
async function reaches(box, name) {
  try {
    await box.commands.run(`curl -sS -m 10 -o /dev/null http://${name}/hello`);
    return true;
  } catch (err) {
    assert(err instanceof e2b.CommandExitError, err);
    return false;
  }
}

test("a name that is allowed, and one that is not", async () => {
  const box = await sandbox({ network: { allowOut: [allowed], denyOut: ["0.0.0.0/0"] } });
  assert.equal(await reaches(box, allowed), true);
  assert.equal(await reaches(box, denied), false);
});

test("all names below one", async () => {
  const below = allowed.replace(/^[^.]+/, "*");
  const box = await sandbox({ network: { allowOut: [below], denyOut: ["0.0.0.0/0"] } });
  assert.equal(await reaches(box, allowed), true);
  assert.equal(await reaches(box, denied), false);
});

test("no internet", async () => {
  const box = await sandbox({ allowInternetAccess: false });
  assert.equal(await reaches(box, allowed), false);
});

test("all of it, unless something is said", async () => {
  const box = await sandbox();
  assert.equal(await reaches(box, allowed), true);
});

test("everything denied", async () => {
  const box = await sandbox({ network: { denyOut: ["0.0.0.0/0"] } });
  assert.equal(await reaches(box, allowed), false);
});

test("tightened and loosened while it runs", { skip: before && "the older client cannot" }, async () => {
  const box = await sandbox({ network: { allowOut: [allowed], denyOut: ["0.0.0.0/0"] } });
  assert.equal(await reaches(box, allowed), true);
  await box.updateNetwork({ allowOut: [denied], denyOut: ["0.0.0.0/0"] });
  assert.equal(await reaches(box, allowed), false);
  assert.equal(await reaches(box, denied), true);
});
