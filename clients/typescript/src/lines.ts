import { parsed, unreadable } from "./error.js";

const newline = 0x0a;

/** lines parses a stream of JSON, one value on each line. Empty lines keep a connection alive, and are left out. */
export async function* lines<Event>(chunks: AsyncIterable<Buffer>): AsyncGenerator<Event, void, undefined> {
    let parts: Buffer[] = []; // of a line that has not ended
    for await (const chunk of chunks) {
        let from = 0;
        for (let to = chunk.indexOf(newline); to >= 0; to = chunk.indexOf(newline, from)) {
            const line = Buffer.concat([...parts, chunk.subarray(from, to)]);
            parts = [];
            from = to + 1;
            if (line.length > 0) yield parsed<Event>(line);
        }
        if (from < chunk.length) parts.push(chunk.subarray(from));
    }
    if (parts.length > 0) throw unreadable("the stream ends within a line");
}
