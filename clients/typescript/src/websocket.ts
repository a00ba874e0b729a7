// The client's side of RFC 6455, as far as an attached exec needs it: no extensions, and it sends no fragments.

import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import type http from "node:http";
import type { Duplex } from "node:stream";

import { unreadable } from "./error.js";

const continuation = 0x0;
const textFrame = 0x1;
const binaryFrame = 0x2;
const closeFrame = 0x8;
const pingFrame = 0x9;
const pongFrame = 0xa;

/** The service's messages are far smaller. */
const maxMessage = 16 << 20;

export interface Message {
    binary: boolean;
    data: Buffer;
}

/** upgradeHeaders returns headers that ask for a WebSocket; the answer must match the key. */
export function upgradeHeaders(): { key: string; headers: http.OutgoingHttpHeaders } {
    const key = randomBytes(16).toString("base64");
    return { key, headers: { connection: "Upgrade", upgrade: "websocket", "sec-websocket-version": "13", "sec-websocket-key": key } };
}

/** upgraded reports whether a response is the answer to that key. */
export function upgraded(response: http.IncomingMessage, key: string): boolean {
    const accept = createHash("sha1").update(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest("base64");
    return response.headers["sec-websocket-accept"] === accept && response.headers.upgrade?.toLowerCase() === "websocket";
}

/** WebSocket is an open connection; it owns its socket. */
export class WebSocket {
    /** Settles when the connection has closed, whoever closed it. What has come by then can still be read. */
    readonly closed: Promise<void>;
    readonly #socket: Duplex;

    /** head is what came with the answer to the upgrade. */
    constructor(socket: Duplex, head: Buffer) {
        this.#socket = socket;
        this.closed = new Promise((resolve) => socket.once("close", () => resolve()));
        socket.on("error", () => {}); // the reader gets the error
        if (head.length > 0) socket.unshift(head);
    }

    /** Sends a message, and waits while the connection is full. It does nothing once the connection is closed. */
    async send(data: string | Uint8Array): Promise<void> {
        await this.#write(typeof data === "string" ? textFrame : binaryFrame, Buffer.from(data));
    }

    async #write(opcode: number, data: Buffer): Promise<void> {
        if (this.#socket.destroyed || this.#socket.writableEnded) return;
        if (this.#socket.write(frame(opcode, data)) || this.#socket.destroyed) return;
        const settled = new AbortController();
        const { signal } = settled;
        await Promise.race([once(this.#socket, "drain", { signal }), once(this.#socket, "close", { signal })]).catch(() => {});
        settled.abort();
    }

    /** Yields messages until the connection is closed. It throws if the connection breaks. */
    async *messages(): AsyncGenerator<Message, void, undefined> {
        const input = new Input(this.#socket);
        let parts: Buffer[] = [];
        let kind = continuation;
        for (;;) {
            const { last, opcode, data } = await readFrame(input);
            if (opcode === closeFrame) return this.#closed(data);
            if (opcode === pingFrame) await this.#write(pongFrame, data);
            if (opcode >= closeFrame) continue;
            if ((opcode === continuation) === (kind === continuation)) throw unreadable("a WebSocket message out of order");
            if (opcode !== continuation) kind = opcode;
            parts.push(data);
            if (parts.reduce((sum, part) => sum + part.length, 0) > maxMessage) throw unreadable("a WebSocket message is too large");
            if (!last) continue;
            yield { binary: kind === binaryFrame, data: parts.length === 1 ? data : Buffer.concat(parts) };
            parts = [];
            kind = continuation;
        }
    }

    #closed(reason: Buffer): void {
        this.#socket.end(frame(closeFrame, reason.subarray(0, 2)));
        const status = reason.length < 2 ? 1000 : reason.readUInt16BE();
        if (status !== 1000) throw new Error(`closed with ${status}: ${reason.subarray(2).toString()}`);
    }

    /** Drops the connection. */
    destroy(): void {
        this.#socket.destroy();
    }
}

/** frame returns a whole message as one frame, masked as a client's must be. */
function frame(opcode: number, data: Buffer): Buffer {
    const mask = randomBytes(4);
    const length = data.length < 126 ? 0 : data.length < 1 << 16 ? 2 : 8;
    const bytes = Buffer.alloc(2 + length + 4 + data.length);
    bytes[0] = 0x80 | opcode;
    bytes[1] = 0x80 | (length === 0 ? data.length : length === 2 ? 126 : 127);
    if (length === 2) bytes.writeUInt16BE(data.length, 2);
    if (length === 8) bytes.writeBigUInt64BE(BigInt(data.length), 2);
    mask.copy(bytes, 2 + length);
    const from = 2 + length + 4;
    for (let i = 0; i < data.length; i++) bytes[from + i] = data[i]! ^ mask[i & 3]!;
    return bytes;
}

async function readFrame(input: Input): Promise<{ last: boolean; opcode: number; data: Buffer }> {
    const [first, second] = (await input.take(2)) as unknown as [number, number];
    if ((first & 0x70) !== 0 || (second & 0x80) !== 0) throw unreadable("a WebSocket frame that a service must not send");
    const opcode = first & 0x0f;
    if (opcode > pongFrame || (opcode > binaryFrame && opcode < closeFrame)) throw unreadable(`a WebSocket frame of the kind ${opcode}`);
    let length = second & 0x7f;
    if (opcode >= closeFrame && (length > 125 || (first & 0x80) === 0)) throw unreadable("a WebSocket control frame that is too large or in parts");
    if (length === 126) length = (await input.take(2)).readUInt16BE();
    else if (length === 127) length = Number((await input.take(8)).readBigUInt64BE());
    if (length > maxMessage) throw unreadable("a WebSocket message is too large");
    return { last: (first & 0x80) !== 0, opcode, data: await input.take(length) };
}

/** Input reads a stream in pieces of exactly the number of bytes that is asked for. */
class Input {
    readonly #chunks: AsyncIterator<Buffer>;
    #parts: Buffer[] = [];
    #length = 0;

    constructor(stream: Duplex) {
        this.#chunks = stream[Symbol.asyncIterator]();
    }

    async take(n: number): Promise<Buffer> {
        while (this.#length < n) {
            const { done, value } = await this.#chunks.next();
            if (done) throw new Error("the connection has ended");
            this.#parts.push(value);
            this.#length += value.length;
        }
        const all = this.#parts.length === 1 ? this.#parts[0]! : Buffer.concat(this.#parts);
        this.#parts = [all.subarray(n)];
        this.#length = all.length - n;
        return all.subarray(0, n);
    }
}
