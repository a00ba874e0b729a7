// A service of the tests' own, for answers that a real one gives when it is in trouble.

import http from "node:http";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import type { Duplex } from "node:stream";
import type { TestContext } from "node:test";

import { Client, Sandbox, type ClientOptions } from "../../src/index.js";

export type Handler = (request: http.IncomingMessage, response: http.ServerResponse) => void;

export class Fake {
    readonly requests: http.IncomingMessage[] = [];
    connections = 0;
    #server: http.Server | undefined;
    #upgrade: (request: http.IncomingMessage, socket: Duplex) => void = (_, socket) => socket.destroy();
    readonly #upgraded = new Set<Duplex>();
    #expect: Handler = (_, response) => refuse(response, 502, "engine");

    constructor(readonly socketPath: string, public handler: Handler) {}

    async start(): Promise<void> {
        const server = http.createServer((request, response) => {
            this.requests.push(request);
            this.handler(request, response);
        });
        server.on("checkContinue", (request, response) => this.#expect(request, response));
        server.on("upgrade", (request, socket) => {
            this.#upgraded.add(socket.on("error", () => {}));
            this.#upgrade(request, socket);
        });
        server.on("connection", () => this.connections++);
        this.#server = server;
        await new Promise<void>((resolve) => server.listen(this.socketPath, resolve));
    }

    /** onExpect handles the requests that wait for a word before they send their body. */
    onExpect(handler: Handler): void {
        this.#expect = handler;
    }

    onUpgrade(handler: (request: http.IncomingMessage, socket: Duplex) => void): void {
        this.#upgrade = handler;
    }

    async stop(): Promise<void> {
        const server = this.#server;
        if (server === undefined) return;
        this.#server = undefined;
        const closed = new Promise((resolve) => server.close(resolve));
        server.closeAllConnections();
        for (const socket of this.#upgraded) socket.destroy();
        await closed;
    }
}

/** lab has a service with this handler, and a client of it, for one test. */
export async function lab(t: TestContext, handler: Handler, options: ClientOptions = {}): Promise<{ fake: Fake; client: Client }> {
    const dir = await mkdtemp(path.join(tmpdir(), "sandbox-client-"));
    const fake = new Fake(path.join(dir, "s"), handler);
    await fake.start();
    const client = new Client({ socketPath: fake.socketPath, ...options });
    t.after(async () => {
        client.close();
        await fake.stop();
        await rm(dir, { recursive: true });
    });
    return { fake, client };
}

export const registered = {
    id: "a", userId: "alice", permissions: { workingDir: "/home" }, mounts: [], createdAt: "2026-01-02T15:04:05Z", updatedAt: "2026-01-02T15:04:05Z",
};

export function answer(response: http.ServerResponse, status: number, body: unknown, headers: http.OutgoingHttpHeaders = {}): void {
    response.writeHead(status, { "content-type": "application/json", ...headers });
    response.end(JSON.stringify(body));
}

export function refuse(response: http.ServerResponse, status: number, kind: string, headers: http.OutgoingHttpHeaders = {}): void {
    answer(response, status, { error: { kind, message: `${kind}, it says` } }, headers);
}

/** boxed is a lab whose service also registers sandboxes, and has one. */
export async function boxed(t: TestContext, handler: Handler, options: ClientOptions = {}): Promise<{ fake: Fake; client: Client; box: Sandbox }> {
    const { fake, client } = await lab(t, (_, response) => answer(response, 201, registered), options);
    const box = await Sandbox.open(client, { id: "a", userId: "alice" });
    fake.requests.length = 0;
    fake.handler = handler;
    return { fake, client, box };
}

export async function bodyOf(request: http.IncomingMessage): Promise<string> {
    let text = "";
    for await (const part of request) text += part;
    return text;
}
