// Times the stock client of E2B against our own client, of one service. It is given a folder with both, the service's socket, and
// how often. It prints milliseconds as JSON.
const [dir, socketPath, warm, creations] = process.argv.slice(2);
const { Sandbox } = await import(`${dir}/node_modules/e2b/dist/index.mjs`);
const { Client, Sandbox: OwnSandbox } = await import(`${dir}/typescript/dist/src/index.js`);

const found = { run: [], login: [], create: [] };
async function timed(into, what) {
  const begun = performance.now();
  await what();
  found[into].push(performance.now() - begun);
}
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

const client = new Client({ socketPath });
// full waits until so many containers wait for sandboxes.
async function full(n) {
  const waiting = async () => ((await client.allContainers()).pooled ?? []).filter((c) => c.state === "pooled").length;
  for (const end = Date.now() + 60_000; (await waiting()) < n; ) {
    if (Date.now() > end) throw new Error("the pool is not full");
    await pause(50);
  }
}

await (await Sandbox.create()).kill(); // so that it is known what comes
await full(Number(creations));
for (let i = 0; i < Number(creations); i++) {
  let box;
  await timed("create", async () => {
    box = await Sandbox.create();
    await box.commands.run("true");
  });
  await box.kill();
}

const box = await Sandbox.create({ timeoutMs: 600_000 });
const own = await OwnSandbox.open(client, { id: "e2b", userId: "e2b", permissions: { network: true } });
const login = { command: "true", login: true, permissions: ["@workspace", "@network"], allowedDomains: ["*"] }; // as the stock client's are
const ways = [
  ["run", () => box.commands.run("true")],
  ["login", () => own.exec(login)],
];
for (let i = 0; i < 10; i++) for (const [, call] of ways) await call();
// One of each by turns, the order turning too: a machine that is slower for a while is so for both. In the rest, the next command's
// shell starts, also under gVisor.
for (let turn = 0; turn < 3 * Number(warm); turn++) {
  for (let i = 0; i < ways.length; i++) {
    await pause(40);
    await timed(...ways[(turn + i) % ways.length]);
  }
}
await box.kill();
console.log(JSON.stringify(found));
process.exit(0); // whatever the clients keep open
