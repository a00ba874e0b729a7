// One sandbox more: "make" says what there was in it, or what E2B_TEST_FIRST prints, and leaves something, "look" finds it again, and both say whether its shell had waited, and how long the
// first took to be there with its first command's output.
import { Sandbox } from "./lab.mjs";

const [phase, id] = process.argv.slice(2);
const begun = performance.now();
const { E2B_TEST_NETWORK: network, E2B_TEST_FIRST: first } = process.env;
const reach = network === "none" ? { allowInternetAccess: false } : { network: { allowOut: [network], denyOut: ["0.0.0.0/0"] } };
const options = { timeoutMs: 600_000, ...reach };
const box = phase === "make" ? await Sandbox.create(options) : await Sandbox.connect(id, options);
const created = performance.now();
const was = await box.commands.run(first ?? "cat ~/mine /var/tmp/mine /tmp/mine 2>/dev/null; grep -o 'ahead.*so' /proc/$$/maps | head -1 >&2; true");
const ran = performance.now();
const wrote = await box.commands.run("echo $HOME | tee ~/mine /var/tmp/mine /tmp/mine");
console.log(JSON.stringify({ id: box.sandboxId, was: was.stdout, ahead: was.stderr, wrote: wrote.stdout, createMs: created - begun, firstMs: ran - created }));
