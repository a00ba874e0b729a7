import assert from "node:assert/strict";
import { test } from "node:test";
import { before, e2b, eventually, sandbox } from "./lab.mjs";

const allowed = process.env.E2B_TEST_ALLOWED;
const denied = process.env.E2B_TEST_DENIED;
const address = process.env.E2B_TEST_ADDRESS; // of both

// reaches reports whether a sandbox gets an answer from a name.
async function reaches(box, name, options = "") {
  try {
    await box.commands.run(`curl -sSf -m 30 ${options} -o /dev/null http://${name}/hello`);
    return true;
  } catch (err) {
    assert(err instanceof e2b.CommandExitError, err);
    return false;
  }
}

test("a name that is allowed, and one that is not", async (t) => {
  const box = await sandbox({ network: { allowOut: [allowed], denyOut: ["0.0.0.0/0"] } });
  assert.equal(await reaches(box, allowed), true);
  await assert.rejects(box.commands.run(`curl -sS -m 10 -o /dev/null http://${denied}/hello`), (err) => err.error.includes(`could not reach "${denied}"`));
  t.diagnostic(`was refused a name: ${box.sandboxId}`);
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

test("an address, and a range", async () => {
  const one = await sandbox({ network: { allowOut: [address], denyOut: ["0.0.0.0/0"] } });
  assert.equal(await reaches(one, address), true);
  assert.equal(await reaches(one, "any.example", `--resolve any.example:80:${address}`), true);
  assert.equal(await reaches(one, allowed), false);
  const range = address.replace(/\d+$/, "0/24");
  const many = await sandbox({ network: { allowOut: [allowed, range], denyOut: [address] } });
  assert.equal(await reaches(many, allowed), true);
  assert.equal(await reaches(many, address, "-m 10"), false);
});

test("what may go on does, and nothing else", { skip: before && "the older client cannot" }, async () => {
  const box = await sandbox({ network: { allowOut: [allowed, denied] } });
  const size = async (name) => Number((await box.commands.run(`stat -c %s ${name} 2>/dev/null || echo 0`)).stdout);
  const fetching = [];
  for (const name of [allowed, denied]) {
    const slowly = `while [ "$(head -c 65536 | wc -c)" -gt 0 ]; do echo >> ${name}; sleep 0.5; done`;
    const argv = `set -o pipefail; curl -sS http://${name}/bytes?n=10000000000 | ${slowly}`;
    fetching.push(await box.commands.run(argv, { background: true, timeoutMs: 0 }));
  }
  for (const name of [allowed, denied]) await eventually(async () => (await size(name)) > 0, "it has begun");
  await box.updateNetwork({ allowOut: [allowed] });
  await assert.rejects(fetching[1].wait(), e2b.CommandExitError);
  const was = await size(allowed);
  await eventually(async () => (await size(allowed)) > was + 5, "the other one goes on");
  assert((await box.commands.list()).some((p) => p.pid === fetching[0].pid));
});

test("tightened and loosened while it runs", { skip: before && "the older client cannot" }, async () => {
  const box = await sandbox({ network: { allowOut: [allowed], denyOut: ["0.0.0.0/0"] } });
  assert.equal(await reaches(box, allowed), true);
  await box.updateNetwork({ allowOut: [denied], denyOut: ["0.0.0.0/0"] });
  assert.equal(await reaches(box, allowed), false);
  assert.equal(await reaches(box, denied), true);
});
