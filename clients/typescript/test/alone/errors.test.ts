import assert from "node:assert/strict";
import net from "node:net";
import { once } from "node:events";
import test from "node:test";

import { Client, SandboxError, type ClientOptions, type ErrorKind } from "../../src/index.js";
import { answer, boxed, lab, refuse } from "./fake.js";

async function failure(call: Promise<unknown>): Promise<SandboxError> {
    const error = await call.then(() => undefined, (error: unknown) => error);
    assert(error instanceof SandboxError, `not a SandboxError: ${String(error)}`);
    return error;
}

test("what the service refuses is told with its kind, status and ids", async (t) => {
    const { client } = await lab(t, (_, response) => refuse(response, 429, "busy", { "retry-after": "3", "x-request-id": "r-1" }));
    const error = await failure(client.health());
    assert.deepEqual(
        { name: error.name, kind: error.kind, status: error.status, message: error.message, requestId: error.requestId, retryAfterMs: error.retryAfterMs },
        { name: "SandboxError", kind: "busy", status: 429, message: "busy, it says", requestId: "r-1", retryAfterMs: 3000 },
    );
});

test("a quota that is used up is named", async (t) => {
    const { client } = await lab(t, (_, response) => answer(response, 429, { error: { kind: "busy", message: "m", limit: "sandboxes" } }));
    assert.equal((await failure(client.health())).limit, "sandboxes");
});

test("hosts that did not answer are named", async (t) => {
    const { client } = await lab(t, (_, response) => answer(response, 200, { containers: [], processes: [], decisions: [], unanswered: ["h2"] }));
    assert.deepEqual((await client.allContainers()).unanswered, ["h2"]);
    assert.deepEqual((await client.allProcesses()).unanswered, ["h2"]);
    assert.deepEqual((await client.allDecisions()).unanswered, ["h2"]);
});

test("a request id in the body is the one, and Retry-After may be a date", async (t) => {
    const { client } = await lab(t, (_, response) =>
        answer(response, 503, { error: { kind: "unavailable", message: "m", requestId: "r-2" } }, { "retry-after": new Date(Date.now() + 60_000).toUTCString() }),
    );
    const error = await failure(client.health());
    assert.equal(error.requestId, "r-2");
    assert(error.retryAfterMs !== undefined && error.retryAfterMs > 50_000 && error.retryAfterMs <= 60_000, String(error.retryAfterMs));
});

test("what does not speak the contract is unreadable", async (t) => {
    const { fake, client } = await lab(t, (_, response) => response.writeHead(502).end("<html>"));
    assert.deepEqual([(await failure(client.health())).kind, (await failure(client.health())).status], ["unreadable", 502]);
    fake.handler = (_, response) => response.end("{");
    assert.equal((await failure(client.health())).kind, "unreadable");
    fake.handler = (_, response) => response.writeHead(301, { location: "/elsewhere" }).end();
    assert.equal((await failure(client.health())).status, 301);
    assert.equal(fake.requests.length, 4, "a redirection was followed");
});

test("a socket that is not there is named, with what to do", async (t) => {
    const { fake, client } = await lab(t, () => {});
    const missing = await failure(new Client({ socketPath: "/nowhere/s.sock" }).health());
    assert.equal(missing.kind, "unreachable");
    assert.match(missing.message, /^there is no socket at \/nowhere\/s\.sock: start sandboxd, or name its socket as socketPath or \$SANDBOX_SOCKET \(.*ENOENT/);
    const file = await failure(new Client({ socketPath: process.execPath }).health());
    assert.equal(file.kind, "unreachable");
    assert.match(file.message, new RegExp(`^nobody listens at ${process.execPath}: start sandboxd again`));
    await fake.stop();
    assert.equal((await failure(client.health())).kind, "unreachable");
    const url = await failure(new Client({ url: "http://127.0.0.1:1" }).health());
    assert.match(url.message, /^no service answers at http:\/\/127\.0\.0\.1:1: /);
});

test("a connection that does not come about is given up", async (t) => {
    // A server that takes connections and never speaks TLS.
    const silent = net.createServer();
    silent.listen(0, "127.0.0.1");
    await once(silent, "listening");
    const sockets: net.Socket[] = [];
    silent.on("connection", (socket) => sockets.push(socket));
    t.after(() => {
        for (const socket of sockets) socket.destroy();
        silent.close();
    });
    const client = new Client({ url: `https://127.0.0.1:${(silent.address() as net.AddressInfo).port}`, connectTimeoutMs: 50 });
    const error = await failure(client.health());
    assert.equal(error.kind, "unreachable");
    assert.match(error.message, /no connection within 50 ms/);
});

test("a connection that breaks is lost, and the client goes on with the next", async (t) => {
    const { fake, client } = await lab(t, (request) => request.socket.destroy());
    const early = await failure(client.health());
    assert.equal(early.kind, "lost");
    assert.match(early.message, /whether the call was carried out is not known/);
    fake.handler = (_, response) => {
        response.writeHead(200, { "content-length": "100" });
        response.write("{", () => response.socket?.destroy());
    };
    assert.equal((await failure(client.health())).kind, "lost");
    fake.handler = (_, response) => answer(response, 200, { status: "ok", version: "v" });
    assert.equal((await client.health()).status, "ok");
    await fake.stop();
    await fake.start();
    assert.equal((await client.health()).status, "ok", "after a restart");
});

test("a closed client ends its calls and takes no further ones", async (t) => {
    const { fake, client } = await lab(t, (_, response) => answer(response, 200, { status: "ok", version: "v" }));
    await client.health();
    const arrived = new Promise((resolve) => (fake.handler = resolve));
    const call = failure(client.health());
    await arrived;
    await client[Symbol.asyncDispose]();
    assert.equal((await call).kind, "closed");
    assert.equal((await failure(client.health())).kind, "closed");
});

test("options that contradict each other are refused, by name", () => {
    const table: [ClientOptions, RegExp][] = [
        [{ socketPath: "/s", url: "http://h" }, /^socketPath and url/],
        [{ socketPath: "" }, /^socketPath is empty/],
        [{ url: "sandbox:1" }, /^url "sandbox:1" begins with sandbox:/],
        [{ url: "nothing" }, /^url "nothing"/],
        [{ url: "https://h/path" }, /^url has more/],
        [{ url: "https://me:secret@h" }, /^url has more/],
        [{ url: "http://h", tls: {} }, /^tls is given for an http: url/],
        [{ socketPath: "/s", tls: {} }, /^tls is given for a Unix socket/],
        [{ url: "https://h", tls: { ca: "" } }, /^tls\.ca is empty/],
        [{ token: "" }, /^token is empty/],
        [{ token: "a\nb" }, /^token is empty or has characters/],
        [{ retry: { attempts: 0 } }, /^retry\.attempts is 0/],
        [{ retry: { attempts: 2, maxDelayMs: -1 } }, /^retry\.maxDelayMs is -1/],
        [{ connectTimeoutMs: 0 }, /^connectTimeoutMs is 0/],
        [{ socket: "/s" } as ClientOptions, /^there is no option socket: the options are socketPath, url, /],
    ];
    for (const [options, message] of table) {
        assert.throws(() => new Client(options), (error) => error instanceof TypeError && message.test(error.message), JSON.stringify(options));
    }
});

test("an id that would lead elsewhere is not sent", async (t) => {
    const { fake, box } = await boxed(t, (_, response) => answer(response, 200, {}));
    for (const processId of ["", ".", ".."]) {
        await assert.rejects(box.processGet({ processId }), /^TypeError: processId is/);
    }
    await box.processGet({ processId: "../../x?y" });
    assert.deepEqual(fake.requests.map((request) => request.url), ["/v1/sandboxes/a/processes/..%2F..%2Fx%3Fy"]);
});

test("a call is tried again when that is asked for, and then only when nothing else but time is missing", async (t) => {
    const table: { name: string; retry?: { attempts: number; maxDelayMs?: number }; status: number; header?: string; tries: number }[] = [
        { name: "not asked for", status: 429, tries: 1 },
        { name: "busy", retry: { attempts: 3, maxDelayMs: 1 }, status: 429, tries: 3 },
        { name: "unavailable", retry: { attempts: 2, maxDelayMs: 1 }, status: 503, tries: 2 },
        { name: "as the service asks", retry: { attempts: 3 }, status: 429, header: "0", tries: 3 },
        { name: "longer than is waited for", retry: { attempts: 3, maxDelayMs: 900 }, status: 429, header: "1", tries: 1 },
        { name: "engine", retry: { attempts: 3, maxDelayMs: 1 }, status: 502, tries: 1 },
        { name: "invalid", retry: { attempts: 3, maxDelayMs: 1 }, status: 400, tries: 1 },
    ];
    const kinds: Record<number, ErrorKind> = { 400: "invalid", 429: "busy", 502: "engine", 503: "unavailable" };
    for (const { name, retry, status, header, tries } of table) {
        const refused = (_: unknown, response: Parameters<typeof refuse>[0]) =>
            refuse(response, status, kinds[status] ?? "", header === undefined ? {} : { "retry-after": header });
        const ofCall = await lab(t, refused);
        assert.equal((await failure(ofCall.client.health({ retry }))).status, status);
        assert.equal(ofCall.fake.requests.length, tries, name);
        const ofClient = await lab(t, refused, { retry });
        assert.equal((await failure(ofClient.client.health())).status, status);
        assert.equal(ofClient.fake.requests.length, tries, `${name}, of the client`);
    }
});

test("a call that is lost is never tried again, and a wait ends with the signal", async (t) => {
    const { fake, client } = await lab(t, (request) => request.socket.destroy(), { retry: { attempts: 3, maxDelayMs: 1 } });
    await failure(client.health());
    assert.equal(fake.requests.length, 1);
    const giveUp = new AbortController();
    fake.handler = (_, response) => {
        refuse(response, 429, "busy", { "retry-after": "3600" });
        response.once("close", () => giveUp.abort(new Error("enough")));
    };
    await assert.rejects(client.health({ signal: giveUp.signal, retry: { attempts: 2, maxDelayMs: 1e7 } }), /enough/);
});
