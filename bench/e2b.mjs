// Times the stock client of E2B against our own client, of one service. It is given a folder with both, the service's
// socket, and how often: prints milliseconds as JSON.
const [dir, socket, warm, creations, bytes] = process.argv.slice(2);
const { Sandbox } = await import(`${dir}/node_modules/e2b/dist/index.mjs`);
const ours = await import(`${dir}/typescript/dist/src/index.js`);

const found = { run: [], exec: [], login: [], create: [], write: [], read: [], upload: [], download: [] };
async function timed(into, what) {
  const begun = performance.now();
  await what();
  found[into].push(performance.now() - begun);
}

for (let i = 0; i < Number(creations); i++) {
  let box;
  await timed("create", async () => {
    box = await Sandbox.create();
    await box.commands.run("true");
  });
  await box.kill();
}

const box = await Sandbox.create({ timeoutMs: 600_000 });
const own = await ours.Sandbox.open(new ours.Client({ socketPath: socket }), { id: "e2b", userId: "e2b", permissions: {} });
const permissions = ["@workspace"];
const login = ["/bin/bash", "-l", "-c", "true"]; // what the stock client has run
for (let i = 0; i < 10; i++) {
  await box.commands.run("true");
  await own.exec({ command: "true", permissions });
}
while (found.run.length < Number(warm)) {
  for (let i = 0; i < 10; i++) await timed("run", () => box.commands.run("true"));
  for (let i = 0; i < 10; i++) await timed("exec", () => own.exec({ command: "true", permissions }));
  for (let i = 0; i < 10; i++) await timed("login", () => own.exec({ argv: login, permissions }));
}

const data = Buffer.alloc(Number(bytes), "x");
async function whole(body) {
  let size = 0;
  for await (const piece of body) size += piece.length;
  if (size !== data.length) throw new Error(`${size} bytes came`);
}
for (let i = 0; i < 3; i++) {
  await timed("write", () => box.files.write("large", data));
  await timed("upload", () => own.upload({ path: "~/large", body: data }));
  await timed("read", async () => whole(await box.files.read("large", { format: "stream" })));
  await timed("download", async () => whole((await own.download({ path: "~/large" })).body));
}
await box.kill();
console.log(JSON.stringify(found));
process.exit(0); // whatever the clients keep open
