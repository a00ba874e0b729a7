// One sandbox more: "make" says what there was in it and leaves something, "look" finds it again, and both say how long the
// first took to be there with its first command's output.
import { Sandbox } from "./lab.mjs";

const [phase, id] = process.argv.slice(2);
const begun = performance.now();
const options = { timeoutMs: 600_000, allowInternetAccess: process.env.E2B_TEST_NETWORK !== "none" };
const box = phase === "make" ? await Sandbox.create(options) : await Sandbox.connect(id, options);
const created = performance.now();
const was = await box.commands.run("cat ~/mine /var/tmp/mine /tmp/mine 2>/dev/null; true");
const ran = performance.now();
const wrote = await box.commands.run("echo $HOME | tee ~/mine /var/tmp/mine /tmp/mine");
console.log(JSON.stringify({ id: box.sandboxId, was: was.stdout, wrote: wrote.stdout, createMs: created - begun, firstMs: ran - created }));
