// What the scenarios share: the client that E2B_TEST_CLIENT names, and a sandbox that goes with its scenario.
import { after } from "node:test";

// The older client leaves the timers of its requests behind, of a minute each, and a file's process would wait for them.
const timeout = globalThis.setTimeout;
globalThis.setTimeout = (run, ms, ...args) => {
  const timer = timeout(run, ms, ...args);
  return ms >= 30_000 ? timer.unref() : timer;
};

export const e2b = await import(process.env.E2B_TEST_CLIENT ?? "e2b");
export const { Sandbox } = e2b;

// before says that it is the client from half a year before.
export const before = process.env.E2B_TEST_CLIENT === "e2b-before";

// sandbox makes one, which is killed when the scenario's file has ended.
export async function sandbox(template, options = {}) {
  if (typeof template !== "string") [template, options] = ["base", template];
  const box = await Sandbox.create(template, { timeoutMs: 900_000, ...options });
  after(() => box.kill().catch(() => {}));
  return box;
}

// eventually waits until a check holds.
export async function eventually(check, what, limitMs = 90_000) {
  for (const end = Date.now() + limitMs; ; ) {
    const value = await check();
    if (value) return value;
    if (Date.now() > end) throw new Error(`not in time: ${what}`);
    await new Promise((done) => setTimeout(done, 50));
  }
}
