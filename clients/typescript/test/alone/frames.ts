// A service's side of a WebSocket, by hand.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import type http from "node:http";
import type { Duplex } from "node:stream";

export const start = text('{"type":"start"}');
export const result = { exitCode: 0, signal: null, failed: false, cwd: "/home", timedOut: false, truncated: false, durationMs: 1, cold: false, egress: [], hints: [] };
export const exit = text(JSON.stringify({ type: "exit", result }));

/** frame is one as a service sends it. */
export function frame(first: number, data: Uint8Array): Buffer {
    if (data.length < 126) return Buffer.concat([Buffer.of(first, data.length), data]);
    const length = data.length < 1 << 16 ? Buffer.alloc(4) : Buffer.alloc(10);
    length[0] = first;
    length[1] = length.length === 4 ? 126 : 127;
    if (length.length === 4) length.writeUInt16BE(data.length, 2);
    else length.writeBigUInt64BE(BigInt(data.length), 2);
    return Buffer.concat([length, data]);
}

export function text(data: string): Buffer {
    return frame(0x81, Buffer.from(data));
}

export function output(channel: number, data: string): Buffer {
    return frame(0x82, Buffer.from(String.fromCharCode(channel) + data));
}

/** shake answers a handshake, in one write with the frames that follow. */
export function shake(request: http.IncomingMessage, socket: Duplex, ...frames: Buffer[]): void {
    const accept = createHash("sha1").update(request.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest("base64");
    const head = `HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`;
    socket.write(Buffer.concat([Buffer.from(head), ...frames]));
}

/** received are the messages that a client has sent, unmasked. */
export async function* received(socket: Duplex): AsyncGenerator<{ opcode: number; data: Buffer }> {
    let rest = Buffer.alloc(0);
    for await (const chunk of socket) {
        rest = Buffer.concat([rest, chunk]);
        while (rest.length >= 2) {
            const short = rest[1]! & 0x7f;
            const size = short < 126 ? 2 : short === 126 ? 4 : 10;
            if (rest.length < size) break;
            const length = short < 126 ? short : short === 126 ? rest.readUInt16BE(2) : Number(rest.readBigUInt64BE(2));
            assert.equal(rest[1]! & 0x80, 0x80, "a client's frame is masked");
            if (rest.length < size + 4 + length) break;
            const mask = rest.subarray(size, size + 4);
            const data = Buffer.from(rest.subarray(size + 4, size + 4 + length).map((byte, i) => byte ^ mask[i & 3]!));
            yield { opcode: rest[0]! & 0x0f, data };
            rest = rest.subarray(size + 4 + length);
        }
    }
}
