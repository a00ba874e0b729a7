import assert from "node:assert/strict";
import type http from "node:http";
import type { Duplex } from "node:stream";
import test from "node:test";

import { SandboxError, type Attached, type ExecEvent, type Retry } from "../../src/index.js";
import { answer, bodyOf, boxed, refuse } from "./fake.js";
import { exit, output, received, result, shake, text } from "./frames.js";

const id = "x-aaaaaaaaaaaaaaaaaaaaaaaaaa";

/** has are a client's messages until one of them is this. */
async function has(messages: AsyncGenerator<{ data: Buffer }>, last: string): Promise<string[]> {
    const list: string[] = [];
    for (;;) {
        const { value, done } = await messages.next();
        if (done) return list;
        list.push(value.data.toString());
        if (list.at(-1) === last) return list;
    }
}

test("whoever was cut off goes on where reading has stopped", async (t) => {
    const { fake, box } = await boxed(t, () => {});
    let served: Duplex | undefined;
    fake.onUpgrade((request, socket) => {
        served = socket.resume();
        shake(request, socket, text(`{"type":"start","execId":"${id}"}`), output(1, "one "), output(2, "two "));
    });
    const first = await box.attach({ command: "c", detachOnDisconnect: true });
    assert.deepEqual([first.execId, first.offset], [id, 0]);
    await assert.rejects(
        (async () => {
            for await (const event of first) if (event.type === "stderr") served?.destroy();
        })(),
        (error) => error instanceof SandboxError && error.kind === "lost",
    );
    assert.equal(first.offset, 8);

    let url: string | undefined;
    fake.onUpgrade((request, socket) => {
        url = request.url;
        socket.resume();
        shake(request, socket, text(`{"type":"start","execId":"${id}"}`), output(1, "four"), text(`{"type":"lost","lost":3}`), output(1, "five"), exit);
    });
    const second = await box.reattach({ execId: id, offset: first.offset });
    assert.equal(url, `/v1/sandboxes/a/execs/${id}?offset=8`);
    assert.deepEqual([second.execId, second.offset], [id, 8]);
    const events: ExecEvent[] = [];
    for await (const event of second) events.push(event);
    assert.deepEqual(events, [
        { type: "start", execId: id }, { type: "stdout", text: "four", data: Buffer.from("four") }, { type: "lost", lost: 3 },
        { type: "stdout", text: "five", data: Buffer.from("five") }, { type: "exit", result },
    ]);
    assert.equal(second.offset, 19);
});

test("stdin waits for the room that is told, and signals do not", async (t) => {
    const { fake, box } = await boxed(t, () => {});
    let said: Promise<string[][]> | undefined;
    fake.onUpgrade((request, socket) => {
        const messages = received(socket);
        shake(request, socket, text(`{"type":"start","execId":"${id}"}`));
        said = (async () => {
            const before = await has(messages, '{"type":"resize","rows":2,"cols":3}');
            socket.write(text('{"type":"stdin","bytes":1048576}'));
            const after = await has(messages, '{"type":"eof"}');
            socket.write(exit);
            return [before, after];
        })();
    });
    const back = await box.reattach({ execId: id });
    const writing = back.write("hello");
    await back.signal("INT");
    await back.resize(2, 3);
    await writing;
    await back.end();
    assert.equal((await back.exit()).exitCode, 0);
    assert.deepEqual(await said, [['{"type":"signal","signal":"INT"}', '{"type":"resize","rows":2,"cols":3}'], ["\0hello", '{"type":"eof"}']]);
});

test("there may be nothing to come back to", async (t) => {
    const { fake, box } = await boxed(t, (_, response) => refuse(response, 404, "notFound"));
    fake.onUpgrade((_, socket) => socket.end('HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 45\r\n\r\n{"error":{"kind":"notFound","message":"no"}}\n'));
    await assert.rejects(box.reattach({ execId: id }), (error) => error instanceof SandboxError && error.kind === "notFound" && error.status === 404);
    await assert.rejects(box.execKill({ execId: id }), (error) => error instanceof SandboxError && error.kind === "notFound");
    await assert.rejects(box.reattach({ execId: "" }), TypeError);
    fake.onUpgrade((request, socket) => {
        socket.resume();
        shake(request, socket, text(`{"type":"start","execId":"${id}"}`), text('{"type":"error","error":{"kind":"conflict","message":"m","requestId":"r-1"}}'));
    });
    const replaced = await box.reattach({ execId: id });
    await assert.rejects(replaced.exit(), (error) => error instanceof SandboxError && error.kind === "conflict" && error.requestId === "r-1");
});

test("a keepalive is not the start", async (t) => {
    const { fake, box } = await boxed(t, () => {});
    const keepalive = text('{"type":"keepalive"}');
    const begins = [() => box.attach({ command: "c", detachOnDisconnect: true }), () => box.reattach({ execId: id })];
    const says = (...frames: Buffer[]) => {
        fake.onUpgrade((request, socket) => {
            socket.resume();
            shake(request, socket, keepalive, ...frames);
        });
    };
    for (const begin of begins) {
        says(text('{"type":"error","error":{"kind":"busy","message":"m","limit":"commands","requestId":"r-1"}}'));
        await assert.rejects(begin(), (error) => error instanceof SandboxError && error.kind === "busy" && error.limit === "commands" && error.requestId === "r-1");

        says(keepalive, text(`{"type":"start","execId":"${id}"}`), output(1, "one"), exit);
        const begun = await begin();
        assert.equal(begun.execId, id);
        const types = [];
        for await (const event of begun) types.push(event.type);
        assert.deepEqual(types, ["start", "stdout", "exit"]);

        says(exit);
        assert.equal((await (await begin()).exit()).exitCode, 0);
    }
    fake.onUpgrade((request, socket) => {
        socket.resume();
        shake(request, socket, keepalive);
        socket.end();
    });
    for (const begin of begins) await assert.rejects(begin(), (error) => error instanceof SandboxError && error.kind === "lost");
});

test("what was refused before its start is tried again when that is asked for", async (t) => {
    const { fake, box } = await boxed(t, () => {});
    const failure = (kind: string) => JSON.stringify({ error: { kind, message: "m" } });
    const answered = (status: number, kind: string) => (_: unknown, socket: Duplex) =>
        socket.end(`HTTP/1.1 ${status} No\r\nretry-after: 0\r\nconnection: close\r\ncontent-length: ${failure(kind).length}\r\n\r\n${failure(kind)}`);
    const said = (kind: string, ...first: Buffer[]) => (request: http.IncomingMessage, socket: Duplex) => {
        socket.resume();
        shake(request, socket, ...first, text(JSON.stringify({ type: "error", ...JSON.parse(failure(kind)) })));
    };
    const begun = text(`{"type":"start","execId":"${id}"}`);
    const begins = [
        (retry?: Retry) => box.attach({ command: "c", retry }),
        (retry?: Retry) => box.reattach({ execId: id, retry }),
    ];
    const retry = { attempts: 3, maxDelayMs: 1 };
    for (const begin of begins) {
        let tries = 0;
        const refused = (refuse: (request: http.IncomingMessage, socket: Duplex) => void) => {
            tries = 0;
            fake.onUpgrade((request, socket) => {
                if (++tries < retry.attempts) return refuse(request, socket);
                socket.resume();
                shake(request, socket, begun, exit);
            });
        };
        const fails = async (exec: Promise<Attached>, kind: string) => {
            await assert.rejects((async () => await (await exec).exit())(), (error) => error instanceof SandboxError && error.kind === kind);
            assert.equal(tries, 1);
        };
        for (const [kind, refuse] of [
            ["busy", answered(429, "busy")], ["unavailable", answered(503, "unavailable")], ["busy", said("busy")], ["unavailable", said("unavailable")],
        ] as const) {
            refused(refuse);
            assert.equal((await (await begin(retry)).exit()).exitCode, 0);
            assert.equal(tries, retry.attempts);
            refused(refuse);
            await fails(begin(), kind);
        }
        for (const [kind, refuse] of [["engine", said("engine")], ["unavailable", said("unavailable", begun)], ["lost", (_: unknown, socket: Duplex) => socket.destroy()]] as const) {
            refused(refuse);
            await fails(begin(retry), kind);
        }
    }
});

test("execs are listed and killed", async (t) => {
    const one = { execId: id, command: "c", tty: false, attached: false, outputBytes: 3, createdAt: "2026-01-02T15:04:05Z" };
    const { fake, box } = await boxed(t, async (request, response) => {
        assert.equal(await bodyOf(request), "");
        if (request.method === "POST") answer(response, 200, { ...one, endedAt: one.createdAt, result: { ...result, exitCode: null, signal: "SIGKILL" } });
        else answer(response, 200, { execs: [one] });
    });
    assert.deepEqual(await box.execList(), [one]);
    assert.equal((await box.execKill({ execId: id })).result?.signal, "SIGKILL");
    assert.deepEqual(fake.requests.map(({ method, url }) => `${method} ${url}`), ["GET /v1/sandboxes/a/execs", `POST /v1/sandboxes/a/execs/${id}/kill`]);
});
