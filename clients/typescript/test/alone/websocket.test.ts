import assert from "node:assert/strict";
import { once } from "node:events";
import type http from "node:http";
import type { Duplex } from "node:stream";
import test from "node:test";

import { SandboxError, type Attached, type ExecEvent, type Sandbox } from "../../src/index.js";
import { answer, boxed, refuse, type Fake } from "./fake.js";
import { exit, frame, output, received, shake, start, text } from "./frames.js";

test("frames of all sizes, in parts and in between", async (t) => {
    const big = "\u00e9".repeat(70_000);
    const frames = [
        start, output(1, "one"), frame(0x89, Buffer.from("ping")), output(2, "x".repeat(200)),
        frame(0x02, Buffer.from("\x01be")), frame(0x8a, Buffer.alloc(0)), frame(0x00, Buffer.from("gi")), frame(0x80, Buffer.from("n")),
        frame(0x82, Buffer.concat([Buffer.of(1), Buffer.from(big)])), exit, frame(0x88, Buffer.from([3, 232])),
    ];
    const { fake, box } = await boxed(t, () => {});
    const all = Buffer.concat(frames);
    for (const size of [1, 7, 1000, all.length]) {
        let heard: Promise<string[]> | undefined;
        fake.onUpgrade(async (request, socket) => {
            shake(request, socket);
            heard = (async () => {
                const list = [];
                for await (const { opcode, data } of received(socket)) list.push(`${opcode} ${data}`);
                return list;
            })();
            heard.catch(() => {});
            const step = size === 1 ? all.length - 1 : 0; // the large frame goes in one, or the test takes long
            for (let at = 0; at < all.length; at += size) {
                if (step > 0 && at > 500) {
                    socket.write(all.subarray(at));
                    break;
                }
                socket.write(all.subarray(at, at + size));
            }
        });
        const events: ExecEvent[] = [];
        for await (const event of await box.attach({ command: "c" })) events.push(event);
        assert.deepEqual(
            events.map((event) => (event.type === "stdout" || event.type === "stderr" ? [event.type, event.text] : [event.type])),
            [["start"], ["stdout", "one"], ["stderr", "x".repeat(200)], ["stdout", "begin"], ["stdout", big], ["exit"]],
            `in pieces of ${size}`,
        );
        assert.deepEqual((await heard)?.slice(0, 2), ['1 {"command":"c"}', "10 ping"]);
    }
});

test("what is no proper WebSocket is told", async (t) => {
    const table: [string, (request: http.IncomingMessage, socket: Duplex) => void, string][] = [
        ["another key", (request, socket) => (((request.headers["sec-websocket-key"] = "x"), shake(request, socket, start))), "unreadable"],
        ["a masked frame", (request, socket) => shake(request, socket, Buffer.from([0x81, 0x80, 0, 0, 0, 0])), "unreadable"],
        ["an extension's bit", (request, socket) => shake(request, socket, Buffer.from([0xc1, 0])), "unreadable"],
        ["an unknown kind", (request, socket) => shake(request, socket, Buffer.from([0x83, 0])), "unreadable"],
        ["too much", (request, socket) => shake(request, socket, Buffer.from([0x82, 127, 0x7f, 0, 0, 0, 0, 0, 0, 0])), "unreadable"],
        ["a part of nothing", (request, socket) => shake(request, socket, frame(0x80, Buffer.alloc(0))), "unreadable"],
        ["not JSON", (request, socket) => shake(request, socket, text("{")), "unreadable"],
        ["an error", (request, socket) => shake(request, socket, text('{"type":"error","error":{"kind":"notFound","message":"m"}}')), "notFound"],
        ["a close", (request, socket) => shake(request, socket, frame(0x88, Buffer.from([3, 241, 0x78]))), "lost"],
        ["an end", (request, socket) => (shake(request, socket), socket.end()), "lost"],
        ["a failure", (_, socket) => socket.destroy(), "lost"],
    ];
    const { fake, box } = await boxed(t, (_, response) => refuse(response, 400, "invalid"));
    for (const [name, serve, kind] of table) {
        fake.onUpgrade(serve);
        await assert.rejects(box.attach({ command: "c" }), (error) => error instanceof SandboxError && error.kind === kind, name);
    }
    fake.onUpgrade((_, socket) => socket.end('HTTP/1.1 400 Bad Request\r\ncontent-length: 43\r\n\r\n{"error":{"kind":"invalid","message":"no"}}'));
    await assert.rejects(box.attach({ command: "c" }), /^SandboxError: no$/);
});

test("an attached exec that loses its service, its client or its reader", async (t) => {
    const { fake, box, client } = await boxed(t, () => {});
    let served: Duplex | undefined;
    fake.onUpgrade((request, socket) => {
        served = socket.resume();
        shake(request, socket, start);
    });
    const lost = await box.attach({ command: "c" });
    served?.destroy();
    await assert.rejects(lost.exit(), (error) => error instanceof SandboxError && error.kind === "lost");
    await lost.write("nobody takes it");

    const abort = new AbortController();
    const aborted = await box.attach({ command: "c", signal: abort.signal });
    abort.abort(new Error("enough"));
    await assert.rejects(aborted.exit(), /enough/);

    const left = await box.attach({ command: "c" });
    const gone = new Promise((resolve) => served?.once("end", resolve));
    for await (const _ of left) break;
    await gone;

    const stuck = await box.attach({ command: "c" });
    const writing = stuck.write(new Uint8Array(3 << 20)); // more than may be sent ahead
    stuck.close();
    await writing;
    await assert.rejects(stuck.exit(), (error) => error instanceof SandboxError && error.kind === "closed");

    const last = await box.attach({ command: "c" });
    client.close();
    await assert.rejects(last.exit(), (error) => error instanceof SandboxError && error.kind === "closed");
});

test("output that nobody reads stays with the service", async (t) => {
    const { fake, box } = await boxed(t, (_, response) => answer(response, 200, {}));
    const part = output(1, "x".repeat(60_000));
    const parts = 1000;
    let lead = 0;
    let taken = 0;
    fake.onUpgrade(async (request, socket) => {
        shake(request, socket, start);
        socket.resume();
        for (let sent = 0; sent < parts; sent++) {
            if (!socket.write(part)) await new Promise((resolve) => socket.once("drain", resolve));
            lead = Math.max(lead, sent - taken);
        }
        socket.write(exit);
    });
    for await (const event of await box.attach({ command: "c" })) {
        if (event.type === "stdout") taken++;
        await new Promise(setImmediate);
    }
    assert.equal(taken, parts);
    assert(lead < parts / 2, `${lead} pieces were ahead of the reader`);
});

/** unread attaches an exec of whose output more has come than may wait for a reader, and then these frames. */
async function unread(fake: Fake, box: Sandbox, signal: AbortSignal, ...frames: Buffer[]): Promise<{ attached: Attached; served: Duplex }> {
    const part = Buffer.concat([Buffer.of(1), Buffer.alloc(2 << 20, "x")]);
    const taken = new Promise<Duplex>((resolve) => {
        fake.onUpgrade(async (request, socket) => {
            shake(request, socket, start, frame(0x02, part), frame(0x89, Buffer.from("first")));
            try {
                for await (const { opcode, data } of received(socket)) {
                    if (opcode !== 10) continue;
                    // Nothing is on its way now, so that the client reads these in one piece: with the second pong it has all.
                    if (data.toString() === "first") socket.write(Buffer.concat([frame(0x89, Buffer.from("second")), frame(0x80, Buffer.alloc(0)), ...frames]));
                    else resolve(socket);
                }
            } catch {
                // the connection was cut
            }
        });
    });
    const attached = await box.attach({ command: "c", signal });
    return { attached, served: await taken };
}

test("a write that waits while output is unread ends with the connection", { timeout: 60_000 }, async (t) => {
    const { fake, box, client } = await boxed(t, () => {});
    const ofKind = (kind: string) => (error: unknown) => error instanceof SandboxError && error.kind === kind;
    const table: [string, (abort: AbortController, served: Duplex) => void, RegExp | ((error: unknown) => boolean)][] = [
        ["by its signal", (abort) => abort.abort(new Error("enough")), /enough/],
        ["by the service", (_, served) => served.destroy(), ofKind("lost")],
        ["with its client", () => client.close(), ofKind("closed")],
    ];
    for (const [name, end, failure] of table) {
        const abort = new AbortController();
        const { attached, served } = await unread(fake, box, abort.signal);
        const writing = attached.write(new Uint8Array(2 << 20)); // more than may be sent ahead
        end(abort, served);
        await writing;
        const types: string[] = [];
        const reading = (async () => {
            for await (const event of attached) types.push(event.type);
        })();
        await assert.rejects(reading, failure, name);
        assert.deepEqual(types, ["start", "stdout"], name);
    }
});

test("an exit that came before the connection closed is told, however late the output is read", { timeout: 60_000 }, async (t) => {
    const { fake, box } = await boxed(t, () => {});
    const { attached, served } = await unread(fake, box, new AbortController().signal, exit);
    const closed = once(served, "close");
    served.end();
    await closed;
    const types: string[] = [];
    for await (const event of attached) types.push(event.type);
    assert.deepEqual(types, ["start", "stdout", "exit"]);
});
