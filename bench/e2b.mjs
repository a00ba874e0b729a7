// Times the stock client of E2B against our own client, of one service. It is given a folder with both, the service's
// socket and URL, that of a server that keeps nothing, and how often: prints milliseconds as JSON.
import http from "node:http";

const [dir, socket, url, idle, warm, creations, bytes] = process.argv.slice(2);
const { Sandbox } = await import(`${dir}/node_modules/e2b/dist/index.mjs`);
const ours = await import(`${dir}/typescript/dist/src/index.js`);

const found = { run: [], answered: [], quiet: [], exec: [], login: [], create: [], write: [], read: [], upload: [], download: [], discarded: [], supplied: [] };
async function timed(into, what) {
  const begun = performance.now();
  await what();
  found[into].push(performance.now() - begun);
}

// full waits until so many containers wait for sandboxes.
async function full(n) {
  const waiting = () =>
    new Promise((done, fail) =>
      http.get({ socketPath: socket, path: "/metrics" }, async (answer) => {
        let text = "";
        for await (const piece of answer) text += piece;
        done(Number(/^sandboxd_pool_containers (\d+)/m.exec(text)[1]));
      }).on("error", fail),
    );
  for (const end = Date.now() + 60_000; (await waiting()) < n; ) {
    if (Date.now() > end) throw new Error("the pool is not full");
    await new Promise((done) => setTimeout(done, 50));
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
const own = await ours.Sandbox.open(new ours.Client({ socketPath: socket }), { id: "e2b", userId: "e2b", permissions: { network: true } });
const permissions = ["@workspace"];
const connected = { permissions: ["@workspace", "@network"], allowedDomains: ["*"] }; // as the stock client's sandbox is
const ownLogin = await ours.Sandbox.open(new ours.Client({ socketPath: socket }), { id: "e2b-login", userId: "e2b-login", permissions: { network: true } });
const login = { command: "true", login: true, ...connected }; // as the stock client's commands are
const none = await Sandbox.create({ apiUrl: idle, sandboxUrl: idle });
const noneOwn = await ours.Sandbox.open(new ours.Client({ url: idle, token: "none" }), { id: "none", userId: "none", permissions: {} });
for (let i = 0; i < 10; i++) {
  await box.commands.run("true");
  await none.commands.run("true");
  await noneOwn.exec(login);
  await ownLogin.exec(login);
  await own.exec({ command: "true", permissions });
}
// One of each by turns, the order turning too: a machine that is slower for a while is so for all. The rest is what it takes
// under gVisor until the next command's shell waits, four times over each turn.
const ways = [
  ["run", () => box.commands.run("true")],
  ["login", () => ownLogin.exec(login)],
  ["answered", () => none.commands.run("true")],
  ["quiet", () => noneOwn.exec(login)],
  ["exec", () => own.exec({ command: "true", permissions })],
];
for (let turn = 0; turn < 3 * Number(warm); turn++) {
  for (let i = 0; i < ways.length; i++) {
    await new Promise((done) => setTimeout(done, 20));
    await timed(...ways[(turn + i) % ways.length]);
  }
}

const far = await ours.Sandbox.open(new ours.Client({ url, token: process.env.E2B_API_KEY.slice("e2b_".length) }), { id: "e2b-far", userId: "e2b-far", permissions: {} });
const data = Buffer.alloc(Number(bytes), "x");
async function whole(body) {
  let size = 0;
  for await (const piece of body) size += piece.length;
  if (size !== data.length) throw new Error(`${size} bytes came`);
}
// What one leaves to be collected, hundreds of megabytes, is not to be the next one's.
async function afresh(into, what) {
  globalThis.gc();
  await timed(into, what);
}
for (let i = 0; i < 5; i++) {
  await afresh("write", () => box.files.write("large", data));
  await afresh("upload", () => far.upload({ path: "~/large", body: data }));
  await afresh("discarded", () => none.files.write("large", data));
  await afresh("read", async () => whole(await box.files.read("large", { format: "stream" })));
  await afresh("supplied", async () => whole(await none.files.read("large", { format: "stream" })));
  await afresh("download", async () => whole((await far.download({ path: "~/large" })).body));
}
await box.kill();
console.log(JSON.stringify(found));
process.exit(0); // whatever the clients keep open
