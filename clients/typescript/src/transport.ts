// The one place that speaks HTTP: it sends requests, reads answers and turns every failure into a
// SandboxError.

import type http from "node:http";
import type { Duplex } from "node:stream";

import { resolve, type Address, type Target } from "./address.js";
import { closed, parsed, SandboxError, unreadable } from "./error.js";
import { answered, broken, unreachable } from "./failure.js";
import { checkRetry, retrying, type Retry } from "./retry.js";
import { upgraded, upgradeHeaders, WebSocket } from "./websocket.js";

/** The options of every call, besides its arguments. */
export interface CallOptions {
    /** Ends the call: its promise is rejected with the signal's reason, and a command that it runs is ended. */
    signal?: AbortSignal | undefined;
    /** Replaces the client's. */
    retry?: Retry | undefined;
}

export interface TransportOptions extends Address {
    /** How long connecting may take, in milliseconds; 10000 by default. */
    connectTimeoutMs?: number | undefined;
    /** For all calls without a retry of their own; by default, no call is tried again. An upload never is. */
    retry?: Retry | undefined;
}

export interface Request {
    method: "GET" | "PUT" | "POST" | "DELETE";
    path: string;
    /** Sent as JSON. */
    body?: unknown;
    headers?: http.OutgoingHttpHeaders;
}

/** Feed writes a request's body and ends it. If it throws, the call fails with that error. */
export type Feed = (request: http.ClientRequest) => Promise<void>;

export class Transport {
    readonly target: Target;
    readonly #connectTimeoutMs: number;
    readonly #retry: Retry | undefined;
    readonly #upgraded = new Set<WebSocket>();
    #closed = false;

    constructor(options: TransportOptions) {
        checkNames(options);
        this.target = resolve(options);
        checkRetry(options.retry);
        this.#retry = options.retry;
        this.#connectTimeoutMs = options.connectTimeoutMs ?? 10_000;
        if (!(this.#connectTimeoutMs > 0)) throw new TypeError(`connectTimeoutMs is ${options.connectTimeoutMs}: give milliseconds above 0`);
    }

    /** json makes a call and returns its answer, which is undefined when there is none. */
    async json<Answer>(request: Request, options: CallOptions = {}): Promise<Answer> {
        return await this.retrying(options, async () => {
            const response = await this.#send(request, options.signal);
            const body = await this.#whole(response, options.signal);
            return response.statusCode === 204 ? (undefined as Answer) : parsed<Answer>(body);
        });
    }

    /** open makes a call whose answer is a stream. The caller reads it to its end or destroys it. */
    async open(request: Request, options: CallOptions = {}): Promise<http.IncomingMessage> {
        return await this.retrying(options, () => this.#send(request, options.signal));
    }

    /** upload makes a call whose body feed writes. It is tried only once, because a body cannot be fed again. */
    async upload<Answer>(request: Request, feed: Feed, signal?: AbortSignal): Promise<Answer> {
        const response = await this.#send(request, signal, feed);
        return parsed<Answer>(await this.#whole(response, signal));
    }

    /** retrying makes a call as often as its options, or the client's, say. */
    async retrying<T>(options: CallOptions, call: () => Promise<T>): Promise<T> {
        checkRetry(options.retry);
        return await retrying(options.retry ?? this.#retry, options.signal, call);
    }

    /** #send makes one try, and returns the response if it is a success. feed runs only when the service asks for the body. */
    async #send(request: Request, signal?: AbortSignal, feed?: Feed): Promise<http.IncomingMessage> {
        const outgoing = this.start(request, signal);
        let response: http.IncomingMessage;
        try {
            response = await this.#response(outgoing, signal, feed);
        } catch (error) {
            if (feed === undefined && outgoing.reusedSocket && neverArrived(error)) return await this.#send(request, signal);
            throw error;
        }
        const status = response.statusCode ?? 0;
        if (status >= 200 && status < 300) return response;
        const body = await this.#whole(response, signal);
        if (feed !== undefined) outgoing.destroy(); // the service does not want the rest of the body
        throw answered(response, body);
    }

    #response(outgoing: http.ClientRequest, signal: AbortSignal | undefined, feed: Feed | undefined): Promise<http.IncomingMessage> {
        return new Promise((resolve, reject) => {
            let connected = false;
            watchConnection(outgoing, this.#connectTimeoutMs, () => (connected = true));
            outgoing.once("response", resolve);
            outgoing.on("error", (error) => reject(this.fault(error, connected, signal)));
            if (feed === undefined) return;
            outgoing.once("continue", () => {
                feed(outgoing).catch((error) => {
                    reject(error);
                    outgoing.destroy();
                });
            });
        });
    }

    /** upgrade opens a WebSocket, which ends when the signal is aborted or the client is closed. */
    async upgrade(path: string, signal?: AbortSignal): Promise<WebSocket> {
        const { key, headers } = upgradeHeaders();
        const outgoing = this.start({ method: "GET", path, headers }, signal);
        const response = this.#response(outgoing, signal, undefined);
        return await new Promise<WebSocket>((resolve, reject) => {
            outgoing.once("upgrade", (answer, socket, head) => {
                if (upgraded(answer, key)) return resolve(this.#kept(new WebSocket(socket, head), socket, signal));
                socket.destroy();
                reject(unreadable("it is not that of a WebSocket", answer.statusCode));
            });
            response.then(async (answer) => reject(answered(answer, await this.#whole(answer, signal)))).catch(reject);
        });
    }

    /** #kept makes a WebSocket end when the signal is aborted or the client is closed. */
    #kept(connection: WebSocket, socket: Duplex, signal: AbortSignal | undefined): WebSocket {
        const end = () => connection.destroy();
        this.#upgraded.add(connection);
        signal?.addEventListener("abort", end);
        socket.once("close", () => {
            this.#upgraded.delete(connection);
            signal?.removeEventListener("abort", end);
        });
        return connection;
    }

    /** start sends a request, with its body if that is JSON. The caller has to listen for "error" at once. */
    start(request: Request, signal?: AbortSignal): http.ClientRequest {
        if (this.#closed) throw closed();
        signal?.throwIfAborted();
        const body = request.body === undefined ? undefined : JSON.stringify(request.body);
        const outgoing = this.target.request({
            ...this.target.options,
            agent: this.target.agent,
            method: request.method,
            path: request.path,
            ...(signal === undefined ? {} : { signal }),
            headers: {
                accept: "application/json",
                ...(body === undefined ? {} : { "content-type": "application/json", "content-length": Buffer.byteLength(body) }),
                ...this.target.options.headers,
                ...request.headers,
            },
        });
        outgoing.setSocketKeepAlive(true, 15_000);
        if (request.headers?.expect === undefined) outgoing.end(body);
        else outgoing.flushHeaders();
        return outgoing;
    }

    /** fault returns the error of a call whose connection failed. */
    fault(error: Error, connected: boolean, signal: AbortSignal | undefined): unknown {
        if (signal?.aborted) return signal.reason;
        if (error instanceof SandboxError) return error;
        if (this.#closed) return closed();
        return connected ? broken(error) : unreachable(error, this.target);
    }

    async #whole(response: http.IncomingMessage, signal: AbortSignal | undefined): Promise<Buffer> {
        const parts: Buffer[] = [];
        for await (const part of this.chunks(response, signal)) parts.push(part);
        return Buffer.concat(parts);
    }

    /** chunks yields a response's bytes. Leaving the loop early ends the call. */
    async *chunks(response: http.IncomingMessage, signal?: AbortSignal): AsyncGenerator<Buffer, void, undefined> {
        try {
            yield* response;
            // A response that was destroyed between two reads also ends without an error.
            if (!response.complete) throw new Error("the answer was cut short");
        } catch (error) {
            throw this.fault(error as Error, true, signal);
        }
    }

    /** close ends the calls under way, and refuses later ones. */
    close(): void {
        this.#closed = true;
        this.target.agent.destroy();
        for (const connection of this.#upgraded) connection.destroy();
    }
}

const known: Record<keyof TransportOptions, true> = { socketPath: true, url: true, token: true, tls: true, connectTimeoutMs: true, retry: true };

/** checkNames refuses unknown options: with a misspelt one, calls could go to another service. */
function checkNames(options: TransportOptions): void {
    for (const name of Object.keys(options)) {
        if (!Object.hasOwn(known, name)) throw new TypeError(`there is no option ${name}: the options are ${Object.keys(known).join(", ")}`);
    }
}

/**
 * neverArrived reports whether a call could not be sent because the service had closed the kept connection before:
 * the service has stopped, and may be back.
 */
function neverArrived(error: unknown): boolean {
    return error instanceof SandboxError && error.kind === "lost" && (error.cause as NodeJS.ErrnoException | undefined)?.code === "EPIPE";
}

/** watchConnection calls connected when a request has a connection, and ends a request that gets none in time. */
function watchConnection(outgoing: http.ClientRequest, timeoutMs: number, connected: () => void): void {
    outgoing.once("socket", (socket) => {
        if (outgoing.reusedSocket) return connected();
        const timer = setTimeout(() => outgoing.destroy(new Error(`no connection within ${timeoutMs} ms`)), timeoutMs);
        socket.once("encrypted" in socket ? "secureConnect" : "connect", () => {
            clearTimeout(timer);
            connected();
        });
        socket.once("close", () => clearTimeout(timer));
    });
}
