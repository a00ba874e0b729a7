import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";

import { Sandbox, SandboxError } from "../../src/index.js";
import { alone, connect, kindOf, setting, workspace } from "./lab.js";

test("the documents' examples", async (t) => {
    const context = { sandbox: await alone(t) };
    await context.sandbox.write({ path: "~/notes.txt", content: "first\nsecond\n" });
    const text = await context.sandbox.read({ path: "notes.txt" });
    assert.equal(text.type, "text");
    assert.deepEqual([text.content, text.displayPath, text.type === "text" && text.totalLines], ["first\nsecond\n", "~/notes.txt", 2]);
    const written = await context.sandbox.write({ path: "/tmp/out.txt", content: "ok" });
    assert.deepEqual([written.bytes, written.sandboxPath], [2, "/tmp/out.txt"]);
    assert.equal(await readFile(written.resolvedPath, "utf8"), "ok");
    const result = await context.sandbox.exec({ command: "ls notes.txt; cat /tmp/out.txt" });
    assert.deepEqual(
        { stdout: result.stdout, stderr: result.stderr, exitCode: result.exitCode, signal: result.signal, failed: result.failed, cwd: result.cwd },
        { stdout: "notes.txt\nok", stderr: "", exitCode: 0, signal: null, failed: false, cwd: "/home" },
    );
    const part = await context.sandbox.read({ path: "notes.txt", offset: 2, limit: 1 });
    assert.equal(part.content, "second\n");
    await context.sandbox.write({ path: "~/notes.txt", content: "third\n", append: true });
    assert.equal((await context.sandbox.read({ path: "~/notes.txt", raw: true })).content, "first\nsecond\nthird\n");
    assert.equal(await kindOf(context.sandbox.write({ path: "~/notes.txt", content: "", exclusive: true })), "conflict");
});

test("it runs under gVisor", async (t) => {
    const box = await alone(t);
    const kernel = (await box.exec({ command: "uname -r" })).stdout;
    assert.equal(kernel.includes("gvisor"), setting("SANDBOX_TEST_RUNTIME") === "runsc", kernel);
});

test("pictures and bytes come as bytes", async (t) => {
    const box = await alone(t);
    const gif = Buffer.from("R0lGODlhAQABAIAAAAAAAP///ywAAAAAAQABAAACAkQBADs=", "base64");
    await box.write({ path: "~/dot", content: gif });
    const picture = await box.read({ path: "dot" });
    assert.deepEqual([picture.type, picture.content, picture.type === "image" && picture.mimeType], ["image", gif, "image/gif"]);
    const bytes = await box.read({ path: "dot", binary: true });
    assert.deepEqual([bytes.type, bytes.content], ["binary", gif]);
    const output = await box.exec({ command: "cat dot; echo fine >&2" });
    assert.deepEqual([output.stdoutBytes, output.stdout.slice(1, 4), output.stderr, "stderrBytes" in output], [gif, "IF8", "fine\n", false]);
});

test("a user is removed, with the home where asked", async (t) => {
    const client = connect(t);
    const box = await Sandbox.open(client, { id: "ts-removed", userId: "ts-removed" });
    await box.write({ path: "~/kept", content: "x" });
    const p = await box.processStart({ command: "sleep 4099" });
    const removed = await client.removeUser("ts-removed");
    assert.deepEqual([removed.userId, removed.sandboxes, removed.processes, removed.home], ["ts-removed", 1, 1, false]);
    assert.equal(await kindOf(Sandbox.find(client, "ts-removed")), "notFound");
    const again = await Sandbox.open(client, { id: "ts-removed", userId: "ts-removed" });
    assert.equal(await kindOf(again.processGet({ processId: p.id })), "notFound");
    assert.equal((await again.read({ path: "kept" })).content, "x");
    assert.equal((await client.removeUser("ts-removed", { home: true })).home, true);
    assert.equal(await kindOf(client.removeUser("ts-removed", { home: true })), "notFound");
});

test("a credential is registered, changed and removed, and no answer has its value", async (t) => {
    const client = connect(t);
    const terms = { name: "ts-credential", hosts: ["api.example.org"], header: "Authorization", template: "Bearer {secret}" };
    const first = await client.putCredential({ ...terms, value: "ts-value" });
    assert.deepEqual([first.name, first.hosts, first.header, first.template], [terms.name, terms.hosts, terms.header, terms.template]);
    assert.match(first.placeholder, /^daycare-secret-[0-9a-f]{32}$/);
    const changed = await client.putCredential({ ...terms, users: ["alice"] });
    assert.deepEqual([changed.placeholder, changed.createdAt, changed.users], [first.placeholder, first.createdAt, ["alice"]]);
    assert.deepEqual(await client.credential(terms.name), changed);
    assert.deepEqual((await client.credentials()).filter((c) => c.name === terms.name), [changed]);
    assert.equal(JSON.stringify([first, changed]).includes("ts-value"), false);
    await client.removeCredential(terms.name);
    assert.equal(await kindOf(client.credential(terms.name)), "notFound");
    assert.equal(await kindOf(client.putCredential(terms)), "invalid");
});

test("a sandbox is registered once, found again, and forgotten", async (t) => {
    const client = connect(t);
    const args = { id: "ts-registered", userId: "ts-registered", permissions: { workingDir: "project", network: true } };
    const first = await Sandbox.open(client, args);
    const again = await Sandbox.open(client, args);
    assert.deepEqual(again.registered, first.registered);
    assert.deepEqual([again.id, again.userId, again.workingDir, again.permissions.network], ["ts-registered", "ts-registered", "/home/project", true]);
    assert.deepEqual((await Sandbox.find(client, "ts-registered")).registered, first.registered);
    assert((await client.sandboxes()).some((box) => box.id === "ts-registered"));
    assert.equal(await kindOf(Sandbox.open(client, { ...args, userId: "another" })), "conflict");
    await again.forget();
    assert.equal(await kindOf(Sandbox.find(client, "ts-registered")), "notFound");
    assert.equal(await kindOf(again.exec({ command: "true" })), "notFound");
});

test("a container that is there before the call", async (t) => {
    const { userId } = await alone(t);
    const client = connect(t);
    const open = { id: userId + "-warm", userId };
    assert.equal(await kindOf(Sandbox.open(client, { ...open, warm: ["@network"] })), "denied");
    assert.equal(await kindOf(Sandbox.find(client, open.id)), "notFound");
    const box = await Sandbox.open(client, { ...open, warm: workspace });
    while (!(await box.explain({ permissions: workspace })).warm) {
        await new Promise((again) => setTimeout(again, 20));
    }
    assert.equal((await box.exec({ command: "true", permissions: workspace })).cold, false);
    await box.forget();
});

test("what is refused says so", async (t) => {
    const box = await alone(t);
    const table: [string, () => Promise<unknown>, string, RegExp][] = [
        ["a denied path", () => box.read({ path: "~/.ssh/id_ed25519" }), "denied", /^cannot read "~\/\.ssh\/id_ed25519": on the deny list: SSH keys/],
        ["a missing file", () => box.read({ path: "nothing" }), "notFound", /nothing/],
        ["a cwd outside", () => box.exec({ command: "true", cwd: "/etc" }), "denied", /"\/etc" is outside of the working directory/],
        ["names without a grant", () => box.exec({ command: "true", allowedDomains: ["example.com"] }), "denied", /needs @network/],
        ["a blank command", () => box.exec({ command: " " }), "invalid", /command/],
    ];
    for (const [name, call, kind, message] of table) {
        await assert.rejects(call(), (error) => error instanceof SandboxError && error.kind === kind && error.status >= 400 && message.test(error.message), name);
    }
});

test("explain and health", async (t) => {
    const box = await alone(t);
    const view = await box.explain({ permissions: workspace });
    assert.equal(view.places.find((place) => place.path === "/home")?.mode, "writable");
    assert.equal(view.warm, false);
    await box.exec({ command: "true", permissions: workspace });
    assert.equal((await box.explain({ permissions: workspace })).warm, true);
    const client = connect(t);
    const health = await client.health();
    assert.deepEqual([health.status, health.runtime], ["ok", setting("SANDBOX_TEST_RUNTIME")]);
    assert((await client.containers()).some((container) => container.userId === box.userId && container.fingerprint === view.fingerprint));
});

test("pause and resume", async (t) => {
    const box = await alone(t);
    await box.exec({ command: "true" });
    assert.equal((await box.pause()).paused, true);
    assert.equal(await kindOf(box.exec({ command: "true", onlyIfRunning: true })), "conflict");
    assert.notEqual((await box.resume()).paused, true);
    await box.pause();
    assert.equal((await box.exec({ command: "echo again" })).stdout, "again\n");
});

test("over TLS with a token", async (t) => {
    const url = setting("SANDBOX_TEST_URL");
    const ca = await readFile(setting("SANDBOX_TEST_CA"));
    const token = setting("SANDBOX_TEST_TOKEN");
    const client = connect(t, { url, tls: { ca }, token });
    const box = await Sandbox.open(client, { id: "ts-tls", userId: "ts-tls" });
    assert.equal((await box.exec({ command: "echo over TLS" })).stdout, "over TLS\n");
    const events = [];
    for await (const event of box.execStream({ command: "echo streamed" })) events.push(event.type);
    assert.deepEqual(events, ["start", "stdout", "exit"]);
    await assert.rejects(connect(t, { url, token }).health(), /^SandboxError: the certificate of https:\/\/.* is not trusted: give the authority that has signed it as tls\.ca/);
    assert.equal(await kindOf(connect(t, { url, tls: { ca }, token: "another" }).health()), "denied");
    assert.equal(await kindOf(connect(t, { url: url.replace("https:", "http:"), token }).health()), "unreadable");
});

test("a persistent sandbox is one machine", async (t) => {
    const client = connect(t);
    const box = await Sandbox.open(client, { id: "ts-machine", userId: "ts-machine", persistent: true });
    const web = await box.processStart({ in: "sandbox", command: "exec python3 -m http.server 8000", ready: { port: 8000 } });
    assert.equal((await box.processWait({ processId: web.id, until: "ready" })).ready?.ok, true);
    await box.exec({ in: "sandbox", command: "echo hello > page" });
    assert.equal((await box.exec({ in: "sandbox", command: "curl -sS localhost:8000/page" })).stdout, "hello\n");
    assert.equal((await box.exec({ command: "curl -sS localhost:8000/page" })).failed, true);
    assert.equal(await kindOf(box.exec({ in: "sandbox", command: "true", permissions: ["@workspace"] })), "invalid");
    assert.equal((await client.removeUser("ts-machine", { home: true })).processes, 1);
});
