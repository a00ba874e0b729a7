import { decode } from "./bytes.js";
import { SandboxError, told } from "./error.js";
import { lines } from "./lines.js";
import { query } from "./query.js";
import type { CallOptions, Transport } from "./transport.js";
import type { Schemas } from "./types.js";

/** A process by its id. */
export interface ProcessArgs extends CallOptions {
    processId: string;
}

/** A process and the signal that tells it to end. A requested stop cannot be taken back, so there is no AbortSignal. */
export interface ProcessStopArgs {
    processId: string;
    /** TERM by default. */
    signal?: "TERM" | "INT" | "HUP" | "KILL";
    retry?: CallOptions["retry"];
}

export interface ProcessWaitArgs extends ProcessArgs {
    /** What to wait for: the end for good, which is the default, or readiness. */
    until?: "end" | "ready";
    /** How long to wait at most; by default as long as it takes. */
    timeoutMs?: number;
}

export interface ProcessLogArgs extends ProcessArgs {
    /** Which end of the log to read, `end` by default. From the `start` it is followed whole, without `lines` and `bytes`. */
    from?: "start" | "end";
    /** How many lines; 100 by default, 10000 at most. */
    lines?: number;
    /** How many bytes of these lines at most; 1048576 by default and at most. */
    bytes?: number;
}

/** The end of a process's log. */
export interface ProcessLog {
    /** The output as text, with U+FFFD for what is not UTF-8. */
    text: string;
    data: Buffer;
    /** Whether this is less than was asked for, because bytes was too low for lines. */
    truncated: boolean;
    /** What is missing, for people. */
    notice?: string;
}

/** An event of a followed log: output, a notice of what is missing, or finally the process's end. */
export type ProcessLogEvent =
    | { type: "output"; text: string; data: Buffer }
    | { type: "notice"; notice: string }
    | ({ type: "end" } & Omit<Schemas["ProcessLogEnd"], "end">);

/** How long the service is asked to wait in one call: proxies end calls that take much longer. */
const waitAtOnceMs = 60_000;

/** processWait asks until what is waited for has come, or the time is over. */
export async function processWait(transport: Transport, path: string, args: ProcessWaitArgs): Promise<Schemas["WaitedProcess"]> {
    const { until, timeoutMs = Infinity } = args;
    const over = Date.now() + timeoutMs;
    for (;;) {
        const most = Math.max(1, Math.min(waitAtOnceMs, Math.ceil(over - Date.now())));
        const request = { method: "GET" as const, path: path + query({ until, timeoutMs: most }) };
        const waited = await transport.json<Schemas["WaitedProcess"]>(request, args);
        if (!waited.timedOut || Date.now() >= over) return waited;
    }
}

export async function processLog(transport: Transport, path: string, args: ProcessLogArgs): Promise<ProcessLog> {
    const request = { method: "GET" as const, path: path + query({ from: args.from, lines: args.lines, bytes: args.bytes }) };
    const { data: text, encoding, ...rest } = await transport.json<Schemas["ProcessLog"]>(request, args);
    const data = decode(text, encoding);
    return { ...rest, text: data.toString(), data };
}

/** processFollow ends after the event `end`. When the service stops, it fails as `unavailable`: the process may run on. */
export async function* processFollow(transport: Transport, path: string, args: ProcessLogArgs): AsyncGenerator<ProcessLogEvent, void, undefined> {
    const request = { method: "GET" as const, path: path + query({ from: args.from, lines: args.lines, bytes: args.bytes, follow: true }) };
    for await (const event of follow<Schemas["ProcessLogEvent"]>(transport, request, args)) {
        if ("data" in event) {
            const data = decode(event.data, event.encoding);
            yield { type: "output", text: data.toString(), data };
        } else if ("notice" in event) {
            yield { type: "notice", notice: event.notice };
        } else if ("error" in event) {
            throw told(event.error);
        } else if ("end" in event) {
            const { end: _, ...rest } = event;
            yield { type: "end", ...rest };
            return;
        }
    }
}

/** follow yields the lines of a stream that does not end by itself. */
export async function* follow<Event>(transport: Transport, request: { method: "GET"; path: string }, options: CallOptions): AsyncGenerator<Event, void, undefined> {
    const response = await transport.open({ ...request, headers: { accept: "application/x-ndjson" } }, options);
    yield* lines<Event>(transport.chunks(response, options.signal));
    throw new SandboxError({ kind: "unavailable", message: "the service has stopped: follow it again when it is back" });
}
