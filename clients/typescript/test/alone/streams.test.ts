import assert from "node:assert/strict";
import { once } from "node:events";
import type http from "node:http";
import { Readable } from "node:stream";
import test from "node:test";

import { SandboxError, type ExecEvent } from "../../src/index.js";
import { lines } from "../../src/lines.js";
import { answer, bodyOf, boxed, refuse, type Handler } from "./fake.js";

const result = { exitCode: 0, signal: null, failed: false, cwd: "/home", timedOut: false, truncated: false, durationMs: 1, cold: false, egress: [], hints: [] };

function streamed(response: http.ServerResponse, ...events: unknown[]): void {
    response.writeHead(200, { "content-type": "application/x-ndjson" });
    for (const event of events) response.write(JSON.stringify(event) + "\n");
}

test("lines come out whole however they are cut", async () => {
    const text = '{"a":"\u00e9\u{1f600}"}\n\n{"b":2}\n';
    for (let size = 1; size <= text.length; size++) {
        const bytes = Buffer.from(text);
        const chunks = (async function* () {
            for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
        })();
        const all: unknown[] = [];
        for await (const line of lines(chunks)) all.push(line);
        assert.deepEqual(all, [{ a: "\u00e9\u{1f600}" }, { b: 2 }], `in pieces of ${size}`);
    }
});

test("a stream that ends too early, or is none, is told", async (t) => {
    const table: [string, (response: http.ServerResponse) => void, string][] = [
        ["no exit", (response) => (streamed(response, { type: "start" }), response.end()), "lost"],
        ["cut within a line", (response) => (streamed(response), response.end('{"type":')), "unreadable"],
        ["broken", (response) => (streamed(response, { type: "start" }), response.write("\n", () => response.socket?.destroy())), "lost"],
        ["not JSON", (response) => (streamed(response), response.end("<html>\n")), "unreadable"],
        ["an error", (response) => (streamed(response, { type: "start" }, { type: "error", error: { kind: "engine", message: "gone" } }), response.end()), "engine"],
        ["an error without one", (response) => (streamed(response, { type: "error" }), response.end()), "unreadable"],
        ["an exit without a result", (response) => (streamed(response, { type: "exit" }), response.end()), "unreadable"],
    ];
    for (const [name, respond, kind] of table) {
        const { box } = await boxed(t, (_, response) => respond(response));
        const drained = (async () => {
            for await (const _ of box.execStream({ command: "true" }));
        })();
        await assert.rejects(drained, (error) => error instanceof SandboxError && error.kind === kind, name);
        await assert.rejects(box.exec({ command: "true", onStdout: () => {} }), (error) => error instanceof SandboxError && error.kind === kind, name);
    }
});

test("events that keep a connection alive are left out, and those of a later contract are not", async (t) => {
    const { fake, box } = await boxed(t, (_, response) => {
        streamed(response, { type: "start", execId: "e-1" }, { type: "keepalive" }, { type: "later", of: 1 }, { type: "exit", result });
        response.end();
    });
    const events: ExecEvent[] = [];
    for await (const event of box.execStream({ command: "true" })) events.push(event);
    assert.deepEqual(events, [{ type: "start", execId: "e-1" }, { type: "later", of: 1 }, { type: "exit", result }]);
    await box.exec({ command: "true", onStdout: () => {} });
    assert.equal(fake.connections, 1, "the connection was not kept");
});

test("whoever leaves a stream ends it, and an exec that nobody reads is not begun", async (t) => {
    let closed: Promise<unknown> | undefined;
    const { fake, box } = await boxed(t, (request, response) => {
        closed = once(request.socket, "close");
        streamed(response, { type: "start" });
    });
    box.execStream({ command: "true" });
    for await (const _ of box.execStream({ command: "true" })) break;
    await closed;
    assert.equal(fake.requests.length, 1);
});

test("a signal ends a call at each of its stages, with its reason", async (t) => {
    const reason = new Error("no longer wanted");
    const abort = new AbortController();
    const { fake, box, client } = await boxed(t, () => abort.abort(reason));
    await assert.rejects(client.health({ signal: abort.signal }), reason, "before an answer");
    await assert.rejects(box.exec({ command: "true", signal: abort.signal }), reason, "before the call");
    assert.equal(fake.requests.length, 1);
    const later = new AbortController();
    fake.handler = (_, response) => streamed(response, { type: "start" });
    const stream = box.execStream({ command: "true", signal: later.signal });
    assert.deepEqual(await stream.next(), { done: false, value: { type: "start" } });
    const next = stream.next();
    later.abort(reason);
    await assert.rejects(next, reason, "within a stream");
    const between = new AbortController();
    fake.handler = (_, response) => (response.writeHead(200, { "content-length": "5" }), response.write("a"));
    const download = await box.download({ path: "f", signal: between.signal });
    between.abort(reason);
    await assert.rejects(bytesOf(download.body), reason, "before a download is read");
});

async function bytesOf(stream: Readable): Promise<string> {
    let text = "";
    for await (const part of stream) text += part;
    return text;
}

test("callbacks are waited for, and what they throw ends the command", async (t) => {
    const { fake, box } = await boxed(t, (_, response) => {
        const big = "\u00e9".repeat(400_000);
        streamed(response, { type: "start" }, { type: "stdout", data: big }, { type: "stderr", data: "/w==", encoding: "base64" }, { type: "stdout", data: big }, { type: "exit", result });
        response.end();
    });
    let inside = 0;
    const sizes: number[] = [];
    const ended = await box.exec({
        command: "true",
        onStdout: async (text, data) => {
            assert.equal(++inside, 1, "a second piece came before the first was done with");
            await new Promise(setImmediate);
            inside--;
            sizes.push(text.length, data.length);
        },
    });
    assert.deepEqual(sizes, [400_000, 800_000, 400_000, 800_000]);
    assert.deepEqual([ended.stdout.length, ended.truncated, ended.stdoutBytes], [500_000, true, undefined]);
    assert.deepEqual([ended.stdoutCut, ended.stderrCut], [{ at: 500_000, bytes: 600_000 }, undefined]);
    assert.deepEqual([ended.stderr, ended.stderrBytes], ["\ufffd", Buffer.from([0xff])]);
    let closed: Promise<unknown> | undefined;
    fake.handler = (request, response) => {
        closed = once(request.socket, "close");
        streamed(response, { type: "start" }, { type: "stdout", data: "x" });
    };
    await assert.rejects(box.exec({ command: "true", onStdout: () => Promise.reject(new Error("full")) }), /full/);
    await closed;
});

test("arguments go into the contract's form", async (t) => {
    const bodies: unknown[] = [];
    const { fake, box } = await boxed(t, async (request, response) => {
        bodies.push(JSON.parse(await bodyOf(request)));
        answer(response, 200, { ...result, stdout: "", stderr: "" });
    });
    const signal = new AbortController().signal;
    await box.exec({ command: "c", env: { A: 1, B: true, C: "x", D: undefined }, stdin: Buffer.from([0xff]), signal, retry: { attempts: 1 } });
    await box.exec({ argv: ["p"], stdin: "text", permissions: ["@workspace"], allowedDomains: [], timeoutMs: 5 });
    await box.write({ path: "/f", content: new Uint8Array([0, 255]), append: true });
    await box.stat({ path: Buffer.from([0x63, 0xe9]) });
    await box.stat({ path: Buffer.from("caf\u00e9") });
    await box.move({ from: Buffer.from([0xff]), to: "~/b", overwrite: true });
    await box.processStop({ processId: "p-1" });
    assert.deepEqual(bodies, [
        { command: "c", env: { A: "1", B: "true", C: "x" }, stdin: "/w==", stdinEncoding: "base64" },
        { argv: ["p"], stdin: "text", permissions: ["@workspace"], allowedDomains: [], timeoutMs: 5 },
        { path: "/f", content: "AP8=", encoding: "base64", append: true },
        { pathBase64: "Y+k=" },
        { path: "caf\u00e9" },
        { fromBase64: "/w==", to: "~/b", overwrite: true },
        {},
    ]);
    assert.equal(fake.connections, 1, "the connection was not kept");
});

test("an upload that is refused reads nothing, and one whose source fails is cut", async (t) => {
    const { fake, box } = await boxed(t, () => {});
    const refusing = (request: http.IncomingMessage, response: http.ServerResponse) => (fake.requests.push(request), refuse(response, 403, "denied"));
    fake.onExpect(refusing);
    let read = false;
    const source = new Readable({ read: () => (read = true) });
    await assert.rejects(box.upload({ path: "~/.ssh/id", body: source }), (error) => error instanceof SandboxError && error.kind === "denied");
    assert.deepEqual([read, source.destroyed], [false, true]);

    let cut: Promise<unknown> | undefined;
    fake.onExpect((request, response) => {
        cut = new Promise((resolve) => request.once("error", resolve));
        request.resume();
        response.writeContinue();
    });
    const failing = (async function* () {
        yield "some";
        throw new Error("the disk is gone");
    })();
    await assert.rejects(box.upload({ path: "~/f", body: failing }), /the disk is gone/);
    assert.match(String(await cut), /aborted/);

    const abort = new AbortController();
    fake.onExpect((request, response) => {
        request.on("error", () => {});
        request.once("data", () => abort.abort(new Error("enough")));
        response.writeContinue();
    });
    const endless = new Readable({ read() { this.push("x".repeat(1000)); } });
    await assert.rejects(box.upload({ path: "~/f", body: endless, signal: abort.signal }), /enough/);
    assert(endless.destroyed);
});

test("uploads of nothing share a connection", async (t) => {
    const take: Handler = (_, response) => answer(response, 200, { bytes: 0, resolvedPath: "", sandboxPath: "" });
    const { fake, box } = await boxed(t, take);
    fake.onExpect(take); // as Go's server, which answers at once when no bytes are announced
    for (let uploads = 0; uploads < 10; uploads++) {
        for (const body of ["", new Uint8Array()]) assert.equal((await box.upload({ path: "~/f", body })).bytes, 0);
    }
    assert.equal(fake.connections, 1);
});

test("an upload waits while the service does", async (t) => {
    const { fake, box } = await boxed(t, () => {});
    const total = 64 << 20;
    let given = 0;
    let lead = 0; // how much more the source has given than the service has taken, at most
    fake.onExpect(async (request, response) => {
        response.writeContinue();
        let bytes = 0;
        for await (const part of request) {
            bytes += part.length;
            lead = Math.max(lead, given - bytes);
        }
        answer(response, 200, { bytes, resolvedPath: "", sandboxPath: "" });
    });
    const part = Buffer.alloc(1 << 20);
    const body = (async function* () {
        for (; given < total; given += part.length) yield part;
    })();
    assert.equal((await box.upload({ path: "~/f", body })).bytes, total);
    assert(lead < total / 2, `${lead} bytes were taken from the source before the service took them`);
});

test("a token goes with every call", async (t) => {
    const { fake, client } = await boxed(t, (_, response) => answer(response, 200, { status: "ok", version: "v" }), { token: "s3cret" });
    await client.health();
    assert.equal(fake.requests[0]?.headers.authorization, "Bearer s3cret");
});
