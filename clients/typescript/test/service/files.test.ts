import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { Readable } from "node:stream";
import test from "node:test";

import { alone, kindOf } from "./lab.js";

test("files without a command", async (t) => {
    const box = await alone(t);
    await box.mkdir({ path: "~/a/b", parents: true });
    assert.equal(await kindOf(box.mkdir({ path: "~/a/b" })), "conflict");
    await box.write({ path: "~/a/one", content: "1" });
    const listing = await box.list({ path: "a" });
    assert.deepEqual(listing.entries.map((entry) => [entry.name, entry.type]), [["b", "directory"], ["one", "file"]]);
    assert.deepEqual([(await box.stat({ path: "a/one" })).size, (await box.stat({ path: "a/one" })).mode], [1, "0644"]);
    await box.move({ from: "~/a/one", to: "~/a/two" });
    await box.write({ path: "~/a/three", content: "3" });
    assert.equal(await kindOf(box.move({ from: "~/a/three", to: "~/a/two" })), "conflict");
    await box.move({ from: "~/a/three", to: "~/a/two", overwrite: true });
    assert.equal((await box.read({ path: "a/two" })).content, "3");
    await assert.rejects(box.remove({ path: "~/a" }), /set recursive/);
    await box.remove({ path: "~/a", recursive: true });
    assert.equal(await kindOf(box.stat({ path: "~/a" })), "notFound");
});

test("a symbolic link is followed where that is asked for", async (t) => {
    const box = await alone(t);
    await box.upload({ path: "~/real", body: "one", mode: "0600" });
    await box.exec({ command: "ln -s real link; mkdir d; ln -s d dirlink", permissions: ["@workspace"] });
    const link = await box.stat({ path: "link" });
    assert.deepEqual([link.type, link.linkTarget], ["symlink", "real"]);
    const real = await box.stat({ path: "link", follow: true });
    assert.deepEqual([real.type, real.mode], ["file", "0600"]);
    assert.equal(await kindOf(box.read({ path: "link" })), "denied");
    assert.equal(await kindOf(box.write({ path: "link", content: "two" })), "denied");
    await box.write({ path: "link", content: "two", follow: true });
    assert.equal((await box.read({ path: "link", follow: true })).content, "two");
    assert.equal(await kindOf(box.download({ path: "link" })), "denied");
    await box.upload({ path: "link", body: "three", follow: true });
    assert.equal(String(await collect((await box.download({ path: "link", follow: true })).body)), "three");
    assert.equal(await kindOf(box.list({ path: "dirlink" })), "denied");
    assert.deepEqual((await box.list({ path: "dirlink", follow: true })).entries, []);
    assert.equal(await kindOf(box.write({ path: "~/real", content: "x", permissions: [] })), "denied");
});

test("a directory there and back", async (t) => {
    const box = await alone(t);
    await box.upload({ path: "~/d/secret", body: "s", mode: "0600" });
    await box.exec({ command: "ln -s secret d/link", permissions: ["@workspace"] });
    const archive = await collect((await box.pack({ path: "d" })).body);
    const done = await box.unpack({ path: "~/copy", body: Readable.from([archive]) });
    assert.deepEqual(done, { entries: 3, bytes: 1, skipped: 0, sandboxPath: "~/copy" });
    assert.deepEqual([(await box.stat({ path: "copy/secret" })).mode, (await box.stat({ path: "copy/link" })).linkTarget], ["0600", "secret"]);
    assert.equal(await kindOf(box.unpack({ path: "~/copy", body: "no archive ".repeat(100) })), "invalid");
    assert.equal(await kindOf(box.pack({ path: "none" })), "notFound");
});

test("a name of any bytes", async (t) => {
    const box = await alone(t);
    const name = Buffer.from([0x7e, 0x2f, 0x63, 0x61, 0x66, 0xe9]); // ~/caf\xe9
    await box.upload({ path: name, body: "latin" });
    const entry = (await box.list({ path: "." })).entries.find((entry) => entry.name.startsWith("caf"));
    assert.deepEqual([entry?.name, entry?.nameBase64], ["caf\ufffd", "Y2Fm6Q=="]);
    assert.equal((await box.read({ path: name })).content, "latin");
    await box.remove({ path: name });
    await box.upload({ path: "~/a b&c=d#é", body: "odd" });
    assert.equal((await box.read({ path: "a b&c=d#é" })).content, "odd");
});

async function collect(stream: Readable): Promise<Buffer> {
    const parts: Buffer[] = [];
    for await (const part of stream) parts.push(part as Buffer);
    return Buffer.concat(parts);
}

test("large files go in and come out as streams", async (t) => {
    const box = await alone(t);
    const part = Buffer.alloc(1 << 20, "daycare ");
    const size = 40 << 20;
    const written = await box.upload({ path: "~/big", body: Readable.from(Array<Buffer>(40).fill(part)) });
    assert.equal(written.bytes, size);
    const hash = createHash("sha256");
    for (let n = 0; n < 40; n++) hash.update(part);
    const want = hash.digest("hex");
    assert.equal((await box.exec({ command: "sha256sum big" })).stdout, `${want}  big\n`);
    const whole = await box.download({ path: "big" });
    assert.deepEqual([whole.bytes, whole.totalBytes, Number.isNaN(whole.lastModified.getTime())], [size, size, false]);
    assert.equal(createHash("sha256").update(await collect(whole.body)).digest("hex"), want);
    const range = await box.download({ path: "big", start: 3, end: 6 });
    assert.deepEqual([range.bytes, range.totalBytes, String(await collect(range.body))], [4, size, "care"]);
    const rest = await box.download({ path: "big", start: size - 2 });
    assert.equal(String(await collect(rest.body)), "e ");
    assert.equal(await kindOf(box.download({ path: "big", start: size })), "invalid");
    assert.equal(await kindOf(box.download({ path: "none" })), "notFound");
    await assert.rejects(box.download({ path: "big", start: -1 }), /^TypeError: start is -1/);
    (await box.download({ path: "big" })).body.destroy();
});

test("an upload replaces a file as a whole or not at all", async (t) => {
    const box = await alone(t);
    await box.upload({ path: "~/f", body: "old" });
    const cut = (async function* () {
        yield "new";
        throw new Error("the source is gone");
    })();
    await assert.rejects(box.upload({ path: "~/f", body: cut }), /the source is gone/);
    assert.equal((await box.read({ path: "f" })).content, "old");
    assert.equal(await kindOf(box.upload({ path: "~/f", body: "new", exclusive: true })), "conflict");
    assert.equal(await kindOf(box.upload({ path: "~/.ssh/authorized_keys", body: Readable.from(["key"]) })), "denied");
    await box.upload({ path: "~/f", body: new Uint8Array(0) });
    assert.equal((await box.read({ path: "f" })).bytes, 0);
    await box.upload({ path: "~/f", body: Readable.from([]) });
    assert.deepEqual((await box.list({ path: "~" })).entries.map((entry) => entry.name), ["f"]);
});
